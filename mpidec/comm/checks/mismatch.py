"""Texts of mismatches between ranks, which name both sides."""

from __future__ import annotations

import numpy as np

from ...exceptions import RankMismatchError
from .header import Subject

_GAVE_UP = " gave up "


def different_calls(rank: int, call: str, other: int, others: str) -> str:
    """Two ranks are in different calls."""
    return (
        f"rank {rank} is in {call}, rank {other} in {others}: every rank must make the same calls "
        "in the same order"
    )


def different_signatures(rank: int, signature: str, call: str, other: int, others: str) -> str:
    """Two ranks are in the same call with different roots, topologies, rows or steps."""
    return f"rank {rank} has {signature} in {call}, rank {other} has {others}"


def different_arrays(
    rank: int, theirs: Subject, call: str, other: int, dtype: str, shape: tuple[int, ...]
) -> str:
    """Two ranks are in the same call with arrays that do not fit."""
    return (
        f"rank {rank} has an array {theirs.shape} {_name(theirs.dtype)} in {call}, rank {other} "
        f"one {shape} {_name(dtype)}"
    )


def not_expected(sender: int, receiver: int, call: str) -> str:
    """Text: a message that its receiver does not expect."""
    return (
        f"rank {sender} sends to rank {receiver} in {call}, but rank {receiver} does not expect a "
        "message from it"
    )


def not_sent(receiver: int, sender: int, call: str) -> str:
    """Text: an expected message that its sender does not send."""
    return (
        f"rank {receiver} expects a message from rank {sender} in {call}, but rank {sender} does "
        "not send one"
    )


def lists_disagree(sender: int, receiver: int, sends: bool, call: str) -> RankMismatchError:
    """Text: the lists of two ranks do not agree: one sends what the other does not expect, or does
    not send what it expects.
    """
    text = not_expected(sender, receiver, call) if sends else not_sent(receiver, sender, call)
    return RankMismatchError(text)


def closes(rank: int, call: str, other: int) -> str:
    """Text: one rank makes a call, while the other has closed the network."""
    return f"rank {rank} is in {call}, rank {other} closes the network"


def not_closed(rank: int, other: int) -> str:
    """Text: one rank closes the network, which the other has left without closing it."""
    return f"rank {rank} closes the network, rank {other} has left it without closing it"


def gave_up(rank: int, call: str, reason: str) -> str:
    """Text: one rank withdraws from a call, and raises the reason."""
    return f"rank {rank}{_GAVE_UP}{call}: {reason}".rstrip(": ")


def is_told(error: RankMismatchError) -> bool:
    """Return whether a mismatch only reports that another rank gave up, which raises the reason
    itself.
    """
    return _GAVE_UP in str(error)


def _name(dtype: str) -> str:
    return dtype if dtype in ("", "bfloat16") else str(np.dtype(dtype))
