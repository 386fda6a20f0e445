"""Polls of the matching of calls."""

from mpidec.comm.checks import header as h

LARGE = 50_000  # numbers: more than follows a header in its message


def started(matching, op, steps, array=("<f8", (LARGE,)), peer=None, senders=()):
    operation = matching.operation(op, peer)
    operation.array, operation.senders = array, set(senders)
    operation.receivers = frozenset(rank for rank, _ in senders)
    return matching.start(operation, steps(operation))


SUBJECT = h.Subject("call", "push", "root 0", "<f8", (2, 3))
OTHER = {"op": "sum", "mode": "pull", "signature": "root 1", "dtype": "<f4", "shape": (3, 2)}


def apart(text):
    """Whether a mismatch names both ranks and what differs."""
    return "rank 0" in text and "rank 1" in text
