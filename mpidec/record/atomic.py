"""Atomic updates of an HDF5 file: readers find the old content or the new, even if the writer
dies.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import io
import math
import os
import secrets
import time
from collections.abc import Iterator
from typing import Any

from .sums import Sums, note

# Longest time, in seconds, between a reader's open and its lock.
GRACE = 0.02
# Seconds between two attempts at a lock.
PAUSE = 1e-3
ATTEMPTS = 100  # at a lock whose file another writer removes
# Bytes of a name beside which there is room for the spare.
LONGEST = 255 - len("..0123abcd.spare.old")
# Names of other formats.
OTHERS = ".txt .csv .tsv .json .toml .npz .npy .mat .log .png .pdf".split()
# Bytes up to which a copy takes less time than GRACE.
SMALL = 4 << 20
_OPEN_FILES = "raise the limit of open files (ulimit -n 1024)"
REMEDY = {
    errno.ENOSPC: "free some space (the file takes twice its size while it is written), or record "
    "less often (every=...)",
    errno.EDQUOT: "free some of the quota (the file takes twice its size while it is written), or "
    "record less often (every=...)",
    errno.EFBIG: "raise the file size limit (ulimit -f) or record less often (every=...)",
    errno.ELOOP: "its lock file is a symbolic link: remove that, or choose another name",
    errno.EMFILE: _OPEN_FILES,
    errno.ENFILE: _OPEN_FILES,
}


class AtomicFile(io.RawIOBase):
    """HDF5 file whose updates are published completely or not at all.

    Two images of the file are kept on disk in the same folder: the *front*, which has the name
    ``path`` and is not written to while it has it, and the *spare* (``.<name>.<random>.spare``).
    ``update()`` first brings the spare up to date with the front, then opens it with h5py through
    this object (which records the ranges that are written), and finally swaps the two names with
    ``os.replace``.  Thus ``path`` is a complete, closed HDF5 file at every instant.

    Parameters
    ----------
    path : name of the file; symbolic links are followed
    existing : continue the file at ``path`` (True), or start an empty one that replaces it at the
        first update (False)

    Raises
    ------
    OSError
        (FileNotFoundError, IsADirectoryError, PermissionError, ...) if ``path`` cannot be written,
        or if another process is writing it.
    ValueError
        If the file to be continued is not as it was written.

    Notes
    -----
    While open, the file takes twice its size on disk.  A failed write is not reported to HDF5 but
    raised at the end of the update, so that the library closes cleanly and the front is unchanged.
    A reader that keeps the front open beyond the next update keeps reading that image: HDF5 holds a
    shared lock on it, so the writer makes a fresh copy for its spare.  After a kill, the spare and
    ``.<name>.lock`` remain; the next writer of ``path`` removes them.  Behind the content of HDF5
    are its check sums (`Sums`), brought up to date in each update; `checked.open_checked` reads
    with them.
    """

    def __init__(self, path: str | os.PathLike[str], existing: bool = False) -> None:
        super().__init__()
        self.path = os.path.realpath(path)
        folder, name = os.path.split(self.path)
        hidden = _hidden(name)
        self._guard_path = os.path.join(folder, f"{hidden}.lock")
        self._spare_path = os.path.join(folder, f"{hidden}.{secrets.token_hex(4)}.spare")
        self._front = self._spare = self._guard = -1
        # A forked child must not remove the files.
        self._writer = os.getpid()
        self._position = 0
        self._swapped = -math.inf
        self._differs: list[
            tuple[int, int]
        ] = []  # (offset, length) where the spare may differ from the front
        self._failure: BaseException | None = None
        self._sums = Sums()  # of the front
        self._behind = 0  # where the sums in the spare begin, those of an earlier update
        # Sums of blocks that this update has written.
        self._known: dict[int, int] = {}
        _check_writable(os.fspath(path), self.path, existing)
        try:
            self._become_writer()
            if existing:
                self._front = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
                self._sums = _verified(self._front)
            self._new_spare()
        except ValueError as error:
            self.close()
            raise ValueError(f"{os.fspath(path)}: damaged: {error}") from error
        except OSError as error:
            self.close()
            if error.errno is None:
                raise
            remedy = REMEDY.get(error.errno, "choose another name")
            raise OSError(
                error.errno, f"cannot write {os.fspath(path)}: {error.strerror}: {remedy}"
            ) from error

    @contextlib.contextmanager
    def update(self, sync: bool = False) -> Iterator[Any]:
        """Open the file with h5py (``"r+"``, or ``"w"`` at the first update of a new file) and
        publish the changes.

        With `sync` they are on the disk when this returns, and outlive a crash of the machine,
        too.  If the block or any write fails, nothing is published, and the next update starts from
        the front again.
        """
        import h5py

        self._prepare()
        try:
            with h5py.File(self, "w" if self._front < 0 else "r+", libver="v110") as file:
                yield file
        except BaseException:
            if self._failure is None:
                raise
        if self._failure is not None:
            raise self._failure
        sums = self._seal()
        if sync:
            os.fsync(self._spare)
        self._publish(sums)
        if sync:
            _sync_folder(os.path.dirname(self.path))

    def close(self) -> None:
        """Remove the spare and the lock file; the front remains.  May be called again."""
        if self.closed:
            return
        super().close()
        own = os.getpid() == self._writer
        for descriptor, name in (
            (self._front, None),
            (self._spare, self._spare_path),
            (self._guard, self._guard_path),
        ):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.unlink(name) if name and own else None
                os.close(descriptor)
        self._front = self._spare = self._guard = -1

    # File interface that h5py calls during an update.

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}
        self._position = offset + (
            os.fstat(self._spare).st_size if whence == os.SEEK_END else base[whence]
        )
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = os.pread(self._spare, len(view), self._position)
        if self._failure is not None:
            # Some writes failed: this update will not be published.
            data = data.ljust(len(view), b"\0")
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._failure is None:
            try:
                self._differs.append((self._position, len(view)))
                note(self._known, view, self._position)
                _write(self._spare, view, self._position)
            except BaseException as error:  # including KeyboardInterrupt, which HDF5 must not see
                self._failure = error
        self._position += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        size = self._position if size is None else size
        if self._failure is None:
            try:
                if (cut := os.fstat(self._spare).st_size - size) > 0:
                    self._differs.append((size, cut))
                    self._known.clear()
                os.ftruncate(self._spare, size)
            except BaseException as error:
                self._failure = error
        return size

    # Front and spare.

    def _new_spare(self) -> None:
        """Create an empty spare, to be filled with a copy of the front."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._spare_path)
        self._spare = os.open(
            self._spare_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
        )
        self._differs = [] if self._front < 0 else [(0, self._sums.length)]
        self._behind = 0

    def _prepare(self) -> None:
        """Make the spare equal to the front, and lock it."""
        self._failure, self._position, self._known = None, 0, {}
        # A reader may have just opened the file that is now the spare.
        grace = self._swapped + GRACE - time.monotonic()
        if grace > 0 and self._sums.length > SMALL:
            time.sleep(grace)
            grace = 0
        if grace > 0 or not (os.path.exists(self._spare_path) and lock(self._spare, fcntl.LOCK_EX)):
            self._new_spare()
            lock(self._spare, fcntl.LOCK_EX)
        if self._front < 0:
            os.ftruncate(self._spare, 0)
            return
        # HDF5 leaves gaps where it has grown: nothing of the earlier sums may stay in them.
        os.ftruncate(self._spare, min(self._behind, self._sums.length))
        for offset, length in self._differs:
            end = min(offset + length, self._sums.length)
            for start in range(offset, end, SMALL):
                piece = os.pread(self._front, min(SMALL, end - start), start)
                _write(self._spare, memoryview(piece), start)
        os.ftruncate(self._spare, self._sums.length)
        self._differs, self._behind = [], self._sums.length

    def _seal(self) -> Sums:
        """Write the check sums behind the content of the spare."""
        length = os.fstat(self._spare).st_size
        sums = self._sums.updated(self._spare, length, self._differs, self._known)
        _write(self._spare, memoryview(sums.trailer()), length)
        return sums

    def _publish(self, sums: Sums) -> None:
        """Swap the names of front and spare, whose check sums are `sums`; ``path`` names one of
        them at every instant.
        """
        old = self._spare_path + ".old"
        linked = False
        if self._front >= 0:
            try:
                if not os.path.samestat(os.stat(self.path), os.fstat(self._front)):
                    raise FileExistsError(
                        f"{self.path} was replaced by another program while this run was writing it"
                    )
                os.link(self.path, old)
                linked = True
            except FileExistsError:
                raise
            except OSError:  # path was removed, or there are no hard links: the next update copies
                pass
        lock(self._spare, fcntl.LOCK_UN)
        try:
            os.replace(self._spare_path, self.path)
        except OSError:
            if linked:
                os.unlink(old)
            raise
        self._behind = self._sums.length  # of what is the spare now
        self._front, self._spare, self._sums = self._spare, self._front, sums
        self._swapped = time.monotonic()
        if linked:
            with contextlib.suppress(OSError):
                os.replace(old, self._spare_path)
                return
        # The update is published; the next one tries again.
        with contextlib.suppress(OSError):
            self._new_spare()

    def _become_writer(self) -> None:
        """Take the lock of the only writer of ``path``, and remove spares that a killed writer
        left.
        """
        for _ in range(ATTEMPTS):
            guard = os.open(
                self._guard_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666
            )
            if not lock(guard, fcntl.LOCK_EX):
                os.close(guard)
                time.sleep(PAUSE)  # a reader may have looked whether there is a writer
                continue
            if _has_name(guard, self._guard_path):
                self._guard = guard
                break
            # The writer before removed the name after it was opened here: the lock excludes nobody.
            os.close(guard)
        if self._guard < 0:
            raise BlockingIOError(
                f"another process is writing {self.path}: wait for it, or choose another name"
            )
        folder, name = os.path.split(self.path)
        for leftover in glob.glob(
            os.path.join(glob.escape(folder), f"{glob.escape(_hidden(name))}.*.spare*")
        ):
            os.unlink(leftover)


def check_format(path: str | os.PathLike[str]) -> None:
    """Refuse a name that says that a file has another format than HDF5.

    Raises
    ------
    ValueError
    """
    stem, suffix = os.path.splitext(os.fspath(path))
    if suffix.lower() in OTHERS:
        raise ValueError(
            f"cannot write {os.fspath(path)}: a run file is HDF5, not {suffix}: choose {stem}.h5"
        )


def stamp(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Return what differs after a file has been replaced or changed; None without a file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def is_written(path: str | os.PathLike[str]) -> bool | None:
    """Whether a process of this machine writes the file; None if that cannot be told.

    Examples
    --------
    >>> is_written("run.h5")
    False
    """
    folder, name = os.path.split(os.path.realpath(path))
    try:
        guard = os.open(
            os.path.join(folder, f"{_hidden(name)}.lock"),
            os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW,
        )
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(guard, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(guard)
    return False


def _hidden(name: str) -> str:
    """Return the beginning of the names of the lock and the spare of a file: its own, or a hash of
    a long one, as names have at most 255 bytes.
    """
    whole = os.fsencode(name)
    short = name if len(whole) <= LONGEST else hashlib.sha256(whole).hexdigest()[:32]
    return f".{short}"


def _check_writable(given: str, path: str, existing: bool) -> None:
    folder = os.path.dirname(path)
    if not existing:
        check_format(given)
    if os.path.isdir(path):
        raise IsADirectoryError(
            f"cannot write {given}: it is a folder: give the name of a file, such as {given}/run.h5"
        )
    if not os.path.isdir(folder):
        raise FileNotFoundError(
            f"cannot write {given}: there is no folder {folder}: create it, or choose another"
        )
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise OSError(
                error.errno, f"cannot write {given}: {error.strerror}: choose another name"
            ) from None
    if existing and not os.path.exists(path):
        raise FileNotFoundError(f"{given} does not exist")
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(f"cannot write {given}: it is not a regular file")
    if not os.access(folder, os.W_OK | os.X_OK) or (
        os.path.exists(path) and not os.access(path, os.W_OK)
    ):
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            raise OSError(
                errno.EROFS,
                f"cannot write {given}: the file system of {folder} is read-only: choose another",
            )
        raise PermissionError(
            f"cannot write {given}: no permission to write {path} or its folder: choose another"
        )


def _verified(descriptor: int) -> Sums:
    """Return the check sums of a file, all of which is as it was written; those of a file without
    any are taken now.
    """
    sums = Sums.of(descriptor)
    if sums is None:
        return Sums().updated(descriptor, os.fstat(descriptor).st_size, ())
    sums.check(descriptor)
    return sums


def _has_name(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _sync_folder(folder: str) -> None:
    with contextlib.suppress(OSError):  # a file system without it
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write(descriptor: int, view: memoryview, offset: int) -> None:
    while len(view):
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


def lock(descriptor: int, kind: int) -> bool:
    """Take or release an advisory lock like those of HDF5; return False if another process holds
    a conflicting one.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
