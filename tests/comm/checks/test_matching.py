"""Matching of calls: headers, operations under way, polls within polls, errors found in a poll."""

import contextlib
import time

import numpy as np
import pytest
from helpers.matching import OTHER, SUBJECT, apart, started
from mpi4py import MPI

import mpidec
from mpidec import RankMismatchError
from mpidec.comm.checks import header as h
from mpidec.comm.checks.history import PastOperation
from mpidec.comm.checks.matching import Matching
from mpidec.comm.checks.operation import ARRIVED

pytestmark = [pytest.mark.wide, pytest.mark.library]


LARGE = 50_000  # numbers: more than follows a header in its message


def poll_until(matching, holds):
    for _ in range(10**6):
        matching.poll()
        if holds():
            return
    raise AssertionError("polled a million times")


def test_a_poll_within_a_poll_returns_at_once(matching):
    def takes(operation):
        operation.expect(h.EDGE, [matching.rank])
        yield ARRIVED
        return float(operation.take(matching.rank, h.EDGE, np.dtype(float)).sum())

    mine = [(matching.rank, h.EDGE)]
    other = started(matching, "other", takes, ("<f8", (3,)), senders=mine)

    def steps(operation):
        matching.poll()  # within these steps, but not in a poll
        operation.send(matching.rank, h.EDGE, np.ones(3))
        operation.expect(h.EDGE, [matching.rank])
        yield ARRIVED
        other.send(matching.rank, h.EDGE, np.full(3, 2.0))
        for _ in range(1000):
            matching.poll()  # within the poll that goes on with these steps
        assert not other.done and not other.received
        return float(operation.take(matching.rank, h.EDGE, np.dtype(float)).sum())

    operation = started(matching, "itself", steps, ("<f8", (3,)), senders=mine)
    operation.wait()
    other.wait()
    assert (operation.result, other.result) == (3, 6)


def test_an_error_in_a_poll_belongs_to_its_operation(matching):
    def steps(operation):
        operation.send(matching.rank, h.EDGE, np.ones(3))
        operation.expect(h.EDGE, [matching.rank])
        yield ARRIVED
        raise OverflowError("of these steps")

    operation = started(matching, "itself", steps, ("<f8", (3,)), senders=[(matching.rank, h.EDGE)])
    poll_until(matching, lambda: operation.done)  # does not raise
    for _ in range(2):
        with pytest.raises(OverflowError, match="of these steps"):
            operation.wait()


def test_a_message_of_another_program_does_not_raise_in_a_poll(matching):
    def steps(operation):
        operation.expect(h.EDGE, [matching.rank])  # from itself, which sends nothing
        yield ARRIVED

    request = matching.messenger.comm.Isend([b"not a header", MPI.BYTE], matching.rank, 16384)
    poll_until(matching, lambda: matching._findings.errors and request.Test())  # does not raise
    with pytest.raises(Exception, match="requires a buffer"):
        started(matching, "itself", steps).wait()
    matching.agree("barrier", "")


@pytest.mark.parametrize("size", [3, LARGE])
def test_messages_of_a_closed_network_are_dropped(matching, size):
    other = Matching(matching.messenger.comm, serial=6)
    requests = other.messenger.send(
        matching.rank,
        h.Header(h.DATA, False, 1, h.Subject("barrier"), nbytes=8 * size),
        np.ones(size),
    )
    matching.agree("barrier", "")
    poll_until(matching, lambda: not matching.messenger._unclaimed)
    matching.agree("barrier", "")
    MPI.Request.Waitall(requests)
    assert not matching._findings.errors and not matching._early


def test_a_question_that_is_read_late_does_no_harm(comm):
    """A rank asks where this one is, which has made those mixings and calls when it reads that, and leaves."""
    own = comm.Dup()
    matching = Matching(own, mixings=lambda: 5)
    matching.register(PastOperation("W(X)", "", "rows", frozenset({matching.rank}), ""))
    matching.messenger.send(
        matching.rank, h.Header(h.MIXING_QUERY, False, 5, h.Subject("W(X)"), before=0)
    )
    matching.messenger.send(
        matching.rank, h.Header(h.QUERY, False, 1, h.Subject("W(X)", "", "rows"), before=5)
    )
    matching.leave()
    for _ in range(1000):
        matching.poll()
    assert not matching._findings.errors and matching.close() is None
    own.Free()


class Late:
    """A communicator on which the messages of one rank arrive after the others."""

    def __init__(self, comm, rank, seconds):
        self._comm, self._others = comm, [other for other in range(comm.size) if other != rank]
        self._until = time.monotonic() + seconds

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def Improbe(self, source, tag, status):
        if time.monotonic() > self._until:
            return self._comm.Improbe(source, tag, status)
        return next(
            filter(None, (self._comm.Improbe(rank, tag, status) for rank in self._others)), None
        )


@pytest.mark.mpi(min_size=3)
def test_closing_waits_for_all_messages_and_returns_what_they_say(comm):
    """Rank 2 reports to rank 1, which hears from rank 0 first that all ranks close."""
    own = comm.Dup()
    comm.Barrier()
    matching = Matching(Late(own, 2, 0.2) if comm.rank == 1 else own)
    if comm.rank == 2:
        matching.report(1, "what rank 2 has found")
    error = matching.close()
    assert (error and str(error)) == ("what rank 2 has found" if comm.rank == 1 else None)
    own.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("last", [False, True])
def test_a_rank_that_leaves_while_the_others_close_is_not_waited_for(comm, last):
    """They raise, and the next network of all frees what they have left."""
    gone = comm.size - 1 if last else 0
    error = KeyError if comm.rank == gone else RankMismatchError
    said = "here" if comm.rank == gone else "closes the network, rank .* has left it"
    net = mpidec.Network(comm=comm)

    def use():
        with net:
            if comm.rank == gone:
                raise KeyError("here")

    with pytest.raises(error, match=said):
        use()
    with mpidec.Network(comm=comm) as again:
        assert net._freed
        again.barrier()


@pytest.mark.mpi(min_size=2)
def test_closing_finds_a_rank_that_is_one_call_ahead(comm):
    for ahead in (0, comm.size - 1):
        own = comm.Dup()
        matching = Matching(own)
        if comm.rank == ahead:
            matching.register(PastOperation("W(X)", "", "rows", frozenset(), ""))
        matching.close()
        assert matching.out_of_step
        own.Free()


@pytest.mark.mpi(min_size=2)
def test_a_failure_that_any_poll_receives_is_not_lost(matching):
    """Rank 1 gives up a call without headers; rank 0 polls in the wait for something else, and then asks."""
    if matching.rank == 0:
        number = matching.register(PastOperation("W(X)", "", "rows", frozenset({1}), ""))
        poll_until(matching, lambda: matching.messenger.comm.Iprobe(1, 7))
        matching.messenger.comm.recv(source=1, tag=7)
        for _ in range(100):
            matching.poll()
        with pytest.raises(RankMismatchError, match="rank 1 gave up"):
            matching.ask([], number, "W(X)", "rows", 0)
    elif matching.rank == 1:
        matching.withdraw("W(X)", TypeError("rows are int64"), [0])
        matching.messenger.comm.send(None, 0, tag=7)


@pytest.mark.mpi(min_size=2)
def test_the_first_reason_is_raised(matching, comm):
    """Also if a later call has failed meanwhile for another one, because the rank that gave the first one closes its network."""
    if comm.rank == 1:
        matching.report(0, "the reason")
        matching.messenger.send(
            0, h.Header(h.REFUSED, False, 1, h.Subject("agree"), text="rank 1 closes the network")
        )
    comm.Barrier()
    if comm.rank == 0:
        operation = matching.operation("agree")
        operation.senders = {(1, h.EDGE)}
        matching.start(operation, waiting(operation))
        with pytest.raises(RankMismatchError, match="the reason"):
            operation.wait()
        assert "closes" in operation.text
    comm.Barrier()


def waiting(operation):
    operation.expect(h.EDGE, [1])
    yield ARRIVED


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_is_out_of_step_says_so(matching, comm):
    if comm.rank == 1:
        matching.withdraw("W(X)", TypeError("integers"), [0])
    elif comm.rank == 0:
        with pytest.raises(
            RankMismatchError, match=r"rank 1 gave up W\(X\) call 1: TypeError: integers"
        ):
            matching.verify("W(X)", "", [1], [1])
        with pytest.raises(RuntimeError, match="out of step"):
            matching.register(PastOperation("W(X)", "", "", frozenset([1]), ""))
    comm.Barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("other", ["mean", "sum", "gather"])
def test_different_calls_of_all_ranks_are_told_although_their_kinds_are_known(other):
    """MPI itself would add up rows of the one and the other."""
    with mpidec.Network() as net:
        calls = {
            "sum": lambda: net.sum(np.full((1, 7), 3.0)),
            "mean": lambda: net.mean(np.full((1, 3), 5.0)),
            "gather": lambda: net.gather(np.full((1, 2), 5.0)),
        }
        for _ in range(3):
            for call in calls.values():
                call()
        if other == "sum":  # the same call with other rows
            net.sum(np.ones((1, 2)))
            calls["sum"] = lambda: net.sum(np.ones((1, 2)))
        if net.rank == net.size - 1:
            with pytest.raises(ValueError, match="every rank must make the same calls"):
                calls[other]()
        else:
            told = rf"rank 0 is in net.sum call \d+ \(rows of 7 float64\), rank {net.size - 1} in net.{other}"
            with pytest.raises(ValueError, match=told):
                net.sum(np.full((1, 7), 3.0))
        np.testing.assert_array_equal(
            net.sum(np.full((1, 7), 3.0)), 3.0 * net.size
        )  # all are in step


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", OTHER)
def test_a_difference_on_one_rank_is_told_to_both(matching, comm, name):
    if comm.rank < 2:
        subject, other = SUBJECT, 1 - comm.rank
        if comm.rank == 1:
            subject = subject._replace(**{name: OTHER[name]})
        operation = matching.operation(subject.op)
        operation.mode, operation.signature = subject.mode, subject.signature
        operation.array = subject.dtype, subject.shape
        operation.receivers, operation.senders = frozenset([other]), {(other, h.EDGE)}

        def steps():
            operation.send(other, h.EDGE, np.ones(6, subject.dtype))
            operation.expect(h.EDGE, [other])
            yield ARRIVED

        with pytest.raises(RankMismatchError) as told:
            matching.start(operation, steps()).wait()
        assert apart(str(told.value))
    comm.Barrier()


@pytest.mark.parametrize("name", ["op", "signature", "receivers"])
def test_a_question_about_an_operation_without_headers_is_answered(matching, name):
    """This rank asks itself: what it finds is raised, told to others that ask, and refuses all further ones."""
    me, record = matching.rank, PastOperation("W(X)", "", "ring", frozenset([matching.rank]), "")
    other = {"op": "V(X)", "signature": "star", "receivers": frozenset()}[name]

    def ask(number):
        matching.ask([me], number, "W(X)", "ring", 0)
        poll_until(matching, lambda: not matching.messenger._unclaimed)

    for number in (1, 2):
        assert matching.register(record) == number
        ask(number)
    number = matching.register(record._replace(**{name: other}))
    with pytest.raises(RankMismatchError) as told:
        [ask(number) for _ in range(1000)]
    assert matching._history.find((number, -1)).error == matching.broken == str(told.value)
    with pytest.raises(RuntimeError, match="out of step"):
        matching.register(record)
    for _ in range(3):  # what was found may have been found twice
        with contextlib.suppress(RankMismatchError):
            ask(number)


def test_an_operation_without_headers_that_another_rank_gave_up_is_raised_once(matching):
    number = matching.register(PastOperation("W(X)", "", "", frozenset(), ""))
    matching.messenger.send(
        matching.rank, h.Header(h.FAILED, False, number, h.Subject("W(X)"), text="rank 1 gave up")
    )
    poll_until(matching, lambda: matching._history.failures)
    with pytest.raises(RankMismatchError, match="rank 1 gave up"):
        matching.ask([], number, "W(X)", "", 0)
    matching.ask([], number, "W(X)", "", 0)
    with pytest.raises(RuntimeError, match=r"out of step \(rank 1 gave up\)"):
        matching.register(PastOperation("W(X)", "", "", frozenset(), ""))
