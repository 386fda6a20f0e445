"""Hosts of a job: those of its launcher's options or of its allocation, which of them answer, and
the launcher's words for those that do.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..exceptions import ConfigError

LAUNCHERS = re.compile(r"(mpirun|mpiexec|prterun|srun)(\.\w+)?")
LISTS = ("-hosts", "--hosts", "-host", "--host", "-H")
FILES = ("-f", "-hostfile", "--hostfile", "-machinefile", "--machinefile")
RANKS = ("-n", "-np", "--np", "--n", "--ntasks")
NODES = ("-N", "--nodes")  # of srun
FOLDERS = ("-wdir", "--wdir", "-wd", "--wd", "-D", "--chdir")
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=5 {} true"
SLURM = "scontrol show node {}"
DOWN = re.compile(r"State=\S*(DOWN|FAIL|NOT_RESPONDING|POWER|\*)")  # of a node of Slurm
# Seconds after which a probe counts as unanswered.
LATE = 15.0
PROBES = 32  # at once


@dataclass(frozen=True)
class Launcher:
    """The words of a launcher: ``mpirun -n 16 -hosts a:8,b:8``, with its hosts and their slots.

    Attributes
    ----------
    words : tuple of str
    slots : mapping
        Number of ranks for which each host has room; empty if the launcher names no hosts and there
        is no allocation.

    Raises
    ------
    ConfigError
        If the launcher changes the folder of the job, or its file of hosts cannot be read.
    """

    words: tuple[str, ...]
    slots: Mapping[str, int]

    @classmethod
    def of(cls, words: Sequence[str], environ: Mapping[str, str]) -> Launcher:
        """Return the launcher at the beginning of a command line.

        Examples
        --------
        >>> Launcher.of("mpirun -n 3 -hosts a:2,b".split(), {}).slots
        {'a': 2, 'b': 1}
        """
        words = tuple(
            part for word in words for part in (word.split("=", 1) if _joined(word) else [word])
        )
        if _place(words) is None:
            return cls(words, {})
        if (folder := _option(words, FOLDERS)) is not None:
            raise ConfigError(
                f"{words[folder]} {words[folder + 1]}: the files of a job are looked for in the "
                f"folder of mpidec restart: omit it, and start from there (cd {words[folder + 1]})"
            )
        if (names := _option(words, LISTS)) is not None:
            return cls(words, _slots(words[names + 1].split(",")))
        if (file := _option(words, FILES)) is not None:
            return cls(words, _slots(_lines(words[file + 1])))
        return cls(words, allocation(environ))

    @property
    def ranks(self) -> int | None:
        """The number of ranks; None if the launcher decides."""
        place = _option(self.words, RANKS)
        given = self.words[place + 1] if place is not None else ""
        return int(given) if given.isdigit() else sum(self.slots.values()) or None

    def fewer(self, left: Sequence[str], any_ranks: bool) -> int | None:
        """Return the number of ranks for the hosts that are left: as many as at first where there
        is room for them, or where they may not change.
        """
        ranks, room = self.ranks, sum(self.slots[host] for host in left)
        total = sum(self.slots.values())
        if ranks is None or not any_ranks or len(left) == len(self.slots):
            return ranks
        return max(1, min(ranks, room) if ranks <= total else ranks * room // total)

    def on(self, left: Sequence[str], ranks: int | None) -> list[str]:
        """Return the words for the hosts that are left, and `ranks` ranks on them.

        Examples
        --------
        >>> whole = Launcher.of("mpirun -n 6 -hosts a:2,b:2,c:2 -launcher ssh".split(), {})
        >>> " ".join(whole.on(["a", "c"], 4))
        'mpirun -hosts a:2,c:2 -n 4 -launcher ssh'
        """
        if len(left) == len(self.slots):
            return [*self.words]
        words = [*self.words]
        listed = _option(words, LISTS)
        option = words[listed] if listed is not None else ""
        for names in (LISTS, FILES, RANKS, NODES):
            while (place := _option(words, names)) is not None:
                del words[place : place + 2]
        start = _place(words) or 0
        count = ["-n", str(ranks)] if ranks is not None else []
        if os.path.basename(words[start]).startswith("srun"):
            lost = ",".join(host for host in self.slots if host not in left)
            more = ["--exclude", lost, "--nodes", str(len(left))]
        else:
            room = sum(self.slots[host] for host in left)
            wanted = {host: -(-self.slots[host] * (ranks or 0) // room) for host in left}
            slots = [f"{host}:{max(self.slots[host], wanted[host])}" for host in left]
            more = [option or _list_option(words[start]), ",".join(slots)]
        return [*words[: start + 1], *more, *count, *words[start + 1 :]]


class HostProbe:
    """Which hosts answer.

    Parameters
    ----------
    command : str
        Ends with status 0 if the host in the place of ``{}``, or behind it, answers; "" is
        ``scontrol show node`` in an allocation of Slurm, and ssh elsewhere.
    hosts : iterable of str
        Hosts that do not answer now, while nobody has lost them, cannot be probed: they count as
        answering.
    """

    def __init__(self, command: str, hosts: Sequence[str], environ: Mapping[str, str]):
        self.command = command or (SLURM if "SLURM_JOB_ID" in environ else SSH)
        if "{}" not in self.command:
            self.command += " {}"
        try:
            self._words = shlex.split(self.command)
        except ValueError as error:
            raise ConfigError(f"--probe {command}: {error}") from None
        self._job = environ.get("SLURM_JOB_ID", "")
        self._known: set[str] = set()
        here = {"localhost", platform.node(), platform.node().partition(".")[0]}
        distant = [host for host in hosts if host not in here]
        self._known = {host for host in distant if host not in self.silent(distant, every=True)}
        self.unknown = [host for host in distant if host not in self._known]

    def silent(self, hosts: Sequence[str], every: bool = False) -> list[str]:
        """Return the hosts that do not answer, among those that can be probed."""
        asked = [host for host in hosts if every or host in self._known]
        # A node that has failed is no part of the allocation any more, even if it answers again.
        kept = _nodes_of(self._job) if self.command == SLURM and self._job else []
        with ThreadPoolExecutor(PROBES) as pool:
            answers = [*pool.map(self._answers, asked)]
        return [
            host
            for host, answer in zip(asked, answers)
            if not answer or (kept and host not in kept)
        ]

    def _answers(self, host: str) -> bool:
        words = [word.replace("{}", host) for word in self._words]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=LATE, stdin=subprocess.DEVNULL
            )
        except FileNotFoundError:
            raise ConfigError(f"--probe: there is no command {words[0]}") from None
        except subprocess.TimeoutExpired:
            return False
        return not done.returncode and not (self.command == SLURM and DOWN.search(done.stdout))


def allocation(environ: Mapping[str, str]) -> dict[str, int]:
    """Return hosts and slots of the allocation of Slurm or PBS; empty without one."""
    if "SLURM_JOB_NODELIST" in environ:
        names = _hostnames(environ["SLURM_JOB_NODELIST"])
        counts: list[int] = []
        given = environ.get("SLURM_TASKS_PER_NODE") or environ.get("SLURM_JOB_CPUS_PER_NODE", "1")
        for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", given):
            counts += [int(count)] * int(times or 1)
        return dict(zip(names, counts))
    if "PBS_NODEFILE" in environ:
        return _slots(_lines(environ["PBS_NODEFILE"]))
    return {}


def _hostnames(nodes: str) -> list[str]:
    """Return the hosts that Slurm writes as ``n[0-3]``."""
    words = ["scontrol", "show", "hostnames", nodes]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def _nodes_of(job: str) -> list[str]:
    """Return the nodes of the allocation of a job of Slurm now; none if Slurm does not say."""
    words = ["squeue", "--noheader", "--jobs", job, "--format", "%N"]
    said = subprocess.run(words, capture_output=True, text=True)
    nodes = said.stdout.strip()
    return _hostnames(nodes) if nodes and not said.returncode else []


def _lines(path: str) -> list[str]:
    """Return a line ``host:slots`` for each line of a host file."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].split() for line in file]
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the hosts: {error.strerror}") from None
    found = []
    for host, *more in filter(None, lines):
        slots = [word.partition("=")[2] for word in more if word.startswith("slots=")]
        found.append(":".join([host, *slots]))
    return found


def _slots(hosts: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in hosts:
        host, _, count = each.partition(":")
        found[host] = found.get(host, 0) + (int(count) if count.isdigit() else 1)
    return found


def _joined(word: str) -> bool:
    """Return whether a word is an option with its value, ``--host=a,b``."""
    return word.partition("=")[0] in (*LISTS, *FILES, *RANKS, *NODES, *FOLDERS) and "=" in word


def _option(words: Sequence[str], names: Sequence[str]) -> int | None:
    """Return the place of an option of the launcher: what is before it has its own."""
    begin = _place(words) or 0
    return next((at for at in range(begin, len(words) - 1) if words[at] in names), None)


def _place(words: Sequence[str]) -> int | None:
    """Return the place of the launcher in a command line; None if it has none."""
    found = (at for at, word in enumerate(words) if LAUNCHERS.fullmatch(os.path.basename(word)))
    return next(found, None)


def _list_option(launcher: str) -> str:
    """Return the option of a launcher that takes a list of hosts."""
    done = subprocess.run([launcher, "--version"], capture_output=True, text=True)
    return "-hosts" if "hydra" in done.stdout.lower() else "--host"
