"""Past operations answer the queries of other ranks."""

import numpy as np
import pytest
from helpers.matching import OTHER, SUBJECT, apart

from mpidec.comm.checks import header as h, history
from mpidec.comm.checks.matching import Matching
from mpidec.comm.checks.operation import Operation
from mpidec.comm.runtime.mpi import MPI

pytestmark = [pytest.mark.wide, pytest.mark.library]
KEYS = [(1, -1), (2, -1), (1, 0), (1, 2), (3, 2)]  # number and peer


@pytest.mark.serial
def test_each_difference_from_an_operation_is_a_mismatch():
    """Of the subject, field by field; of who sends, at which stage, and how often."""
    operation = Operation(Matching(MPI.COMM_SELF), SUBJECT.op, 7)
    operation.mode, operation.signature, operation.array = SUBJECT[1], SUBJECT[2], SUBJECT[3:]
    operation.senders = {(1, h.EDGE)}

    def found(source=1, stage=h.EDGE, subject=SUBJECT):
        again = (source, stage) in operation.received
        return operation.mismatch(source, h.Header(h.DATA, False, 7, subject, stage), again)

    assert found() == "" and set(OTHER) == set(h.Subject._fields)
    for name, other in OTHER.items():
        assert apart(found(subject=SUBJECT._replace(**{name: other}))), name
    operation.comparable = lambda shape: shape[1:]
    assert found(subject=SUBJECT._replace(shape=(9, 3))) == ""
    assert apart(found(subject=SUBJECT._replace(shape=(2, 4))))
    operation.array = None
    assert found(subject=SUBJECT._replace(dtype="<f4", shape=(9,))) == ""
    assert "rank 2" in found(source=2) and apart(found(stage=h.UP))
    operation.any_sender = True
    assert found(source=2) == "" and apart(found(stage=h.UP))
    operation.received[1, h.EDGE] = h.Header(h.DATA, False, 7, SUBJECT), np.ones(6)
    assert apart(found()) and found(source=2) == ""


@pytest.mark.serial
@pytest.mark.parametrize("capacity", [2, 3])
def test_the_oldest_call_is_forgotten(capacity, monkeypatch):
    monkeypatch.setattr(history, "REMEMBERED", capacity)
    past = history.History()
    for number in range(1, capacity + 4):
        past.add((number, -1), history.PastOperation(f"op {number}", "", "", frozenset(), ""))
        past.fail(number, f"{number}")
        kept = range(max(number - capacity + 1, 1), number + 1)
        found = {k: past.find((k, -1)) for k in range(1, number + 1)}
        assert {k: each.op for k, each in found.items() if each} == {k: f"op {k}" for k in kept}
        assert past.failures == {k: f"{k}" for k in kept}


@pytest.mark.serial
def test_operations_of_two_ranks_have_numbers_of_their_own():
    """No two of the same number are taken for each other: of all ranks, and with each peer."""
    past = history.History()
    made = {key: history.PastOperation(f"{key}", "", "", frozenset(), "") for key in KEYS}
    for (number, peer), record in made.items():
        if peer < 0:
            past.registered[number] = number, record
        else:
            past.add((number, peer), record)
    for number in range(4):
        for peer in range(-1, 4):
            assert past.find((number, peer)) is made.get((number, peer)), (number, peer)
