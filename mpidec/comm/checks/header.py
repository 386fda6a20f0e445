"""Message headers: the operation, stage and array that a message belongs to, and their packed
form.
"""

from __future__ import annotations

import pickle
import struct
from functools import lru_cache
from typing import NamedTuple

import numpy as np

# kinds of messages
DATA, REFUSED, FAILED, QUERY, MIXING_QUERY, LAST, LAST_QUERY, LEFT, HERE = range(9)
EDGE, UP, DOWN, CONFIRMATION, TO_LEADER, FROM_LEADER = range(6)  # stages of an operation

_FIXED = struct.Struct("<QqqdqIIIBBBx")  # see `pack`
_PAIR, _CONFIRM, _OUT_OF_STEP = 1, 2, 4  # flags
# Bytes: the array behind a header begins at a multiple, the alignment of complex128.
_ALIGNMENT = 16


class Subject(NamedTuple):
    """Header fields that are equal on both sides if the two ranks make the same call with arrays
    that fit.

    `signature` is compared as text: the step of a schedule, the root of a broadcast, the
    fingerprint of a topology.
    """

    op: str
    mode: str = ""
    signature: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()


class Header(NamedTuple):
    """Header of one message: an array of an operation, a query about one, or a report.

    Attributes
    ----------
    kind : int
        One of `DATA`, `REFUSED`, `FAILED`, `QUERY`, `MIXING_QUERY`, `LAST`,
        `LAST_QUERY`, `LEFT`, `HERE`.
    pair : bool
        Whether the operation is one of two ranks; those are numbered separately.
    number : int
        The number of the operation.
    subject : Subject
    stage : int
        The part of the operation that the message belongs to.
    confirm : bool
        Whether the sender waits for a confirmation.
    weight : float
        The factor of the array.
    nbytes, tag : int
        Size of the array, and the tag of the message that brings it; 0 if it follows the header in
        the same message.
    text : str
        The reason, in a report.
    before : int
        How many mixings in shared memory the sender had begun before operation `number`; in a query
        about such a mixing, how many operations it had begun before mixing `number`.
    out_of_step : bool
        Whether the sender refuses operations without headers from now on.
    """

    kind: int
    pair: bool
    number: int
    subject: Subject
    stage: int = EDGE
    confirm: bool = False
    weight: float = 1.0
    nbytes: int = 0
    tag: int = 0
    text: str = ""
    before: int = 0
    out_of_step: bool = False

    @property
    def call(self) -> str:
        """Describe the operation, for messages."""
        return describe(self.subject.op, self.subject.mode, self.number)


def describe(op: str, mode: str, number: int) -> str:
    """Describe a call, for messages.

    Examples
    --------
    >>> describe("neighbor_allreduce", "push", 3)
    'neighbor_allreduce (push) call 3'
    """
    return f"{op} ({mode}) call {number}" if mode else f"{op} call {number}"


def pack(serial: int, header: Header) -> bytes:
    """Return the bytes of a header, a multiple of 16, for the network `serial`.

    Examples
    --------
    >>> header = Header(DATA, False, 7, Subject("allreduce", dtype="<f8", shape=(2, 3)), UP, nbytes=48)
    >>> raw = np.frombuffer(pack(5, header), np.uint8)
    >>> unpack(raw) == (5, header, len(raw))
    True
    """
    subject, reason = _pack_subject(header.subject), header.text.encode("utf-8", "backslashreplace")
    fixed = _FIXED.pack(
        serial,
        header.number,
        header.before,
        header.weight,
        header.nbytes,
        header.tag,
        len(subject),
        len(reason),
        header.kind,
        header.stage,
        _PAIR * header.pair + _CONFIRM * header.confirm + _OUT_OF_STEP * header.out_of_step,
    )
    return b"".join((fixed, subject, reason, bytes(-len(reason) % _ALIGNMENT)))


def unpack(message: np.ndarray) -> tuple[int, Header, int]:
    """Return the number of the network, the header that a message begins with, and where its array
    begins.
    """
    raw = message.data
    serial, number, before, weight, nbytes, tag, subject_size, reason_size, kind, stage, flags = (
        _FIXED.unpack_from(raw)
    )
    end = _FIXED.size + subject_size
    reason = bytes(raw[end : end + reason_size]).decode() if reason_size else ""
    header = Header(
        kind,
        bool(flags & _PAIR),
        number,
        subject=_unpack_subject(bytes(raw[_FIXED.size : end])),
        stage=stage,
        confirm=bool(flags & _CONFIRM),
        weight=weight,
        nbytes=nbytes,
        tag=tag,
        text=reason,
        before=before,
        out_of_step=bool(flags & _OUT_OF_STEP),
    )
    return serial, header, end + reason_size + -reason_size % _ALIGNMENT


@lru_cache(1024)
def _pack_subject(subject: Subject) -> bytes:
    raw = pickle.dumps(tuple(subject), 4)
    return raw + bytes(-(_FIXED.size + len(raw)) % _ALIGNMENT)


@lru_cache(1024)
def _unpack_subject(raw: bytes) -> Subject:
    return Subject(*pickle.loads(raw))
