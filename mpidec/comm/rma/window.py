"""One-sided windows: the public interface of `rma`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, SupportsFloat

import numpy as np

from ...exceptions import RanksLost
from ..runtime import Collectives, Context, Pending, died, tree, without_the_dead
from .carriers.carrier import Weights
from .carriers.mpi_memory import Ended
from .claims import RankLocks, is_rank
from .messenger import WindowMessenger
from .row_layout import Arrays, RowLayout
from .slots import GetRequest, Slots

if TYPE_CHECKING:
    from ...topology import Topology

RankWeights = Mapping[int, float] | Iterable[int] | None


class Neighbors:
    """The in- or out-neighbours of a rank, in the order of their slots.

    Parameters
    ----------
    what, name : str
        Words for them, and for their weights, for messages.
    ranks : list of int

    Attributes
    ----------
    ones : list of float
        The weight 1 of each.
    """

    def __init__(self, what: str, name: str, ranks: list[int]):
        self._what, self._name, self.ranks = what, name, ranks
        self.places = {rank: k for k, rank in enumerate(ranks)}
        self.ones: Weights = [1.0] * len(ranks)

    def weights(self, given: Mapping[int, float] | Iterable[int]) -> Weights:
        """Return the weight of each neighbour, None for those that are left out."""
        name = self._name
        weights: Weights = [None] * len(self.ranks)
        if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
            raise TypeError(
                f"{name} is {given!r}, expected a dict {{rank: weight}} or a list of ranks"
            )
        pairs = given.items() if isinstance(given, Mapping) else ((rank, 1.0) for rank in given)
        for rank, weight in pairs:
            place = self.places.get(rank) if is_rank(rank) else None
            if place is None:
                raise ValueError(
                    f"{name} has rank {rank!r:.60}, expected some of the {self._what} {self.ranks}"
                )
            if weights[place] is not None:
                raise ValueError(
                    f"{name} has rank {rank} twice, expected each rank once: add up its weights"
                )
            weights[place] = (
                float(weight)
                if type(weight) is float and math.isfinite(weight)
                else _number(name, weight)
            )
        return weights


class WindowValue:
    """The arrays of the user, which show the row that neighbours read.

    Parameters
    ----------
    layout : RowLayout
    slots : Slots

    Attributes
    ----------
    row : array
        What neighbours read.
    arrays : array, or list of arrays
    last_p : float
        The push-sum weight at the end.
    """

    def __init__(self, layout: RowLayout, slots: Slots):
        self.layout, self._slots, self.row = layout, slots, slots.values[0]
        self.arrays = layout.arrays(self.row if slots.half is None else slots.half.own[0])
        self.last_p = math.nan

    def set(self, x: Arrays) -> None:
        """Replace the value."""
        self._slots.agents[0].set(self.layout.row(x))
        self.show()

    def store(self) -> None:
        """Copy what the user has written to arrays that are not views of the row."""
        slots = self._slots
        if slots.half is not None:
            slots.half.renew(slots.agents)
        else:
            slots.agents[0].set(self.layout.row(self.arrays))

    def show(self) -> None:
        """Copy the row to arrays that are not views of it."""
        slots = self._slots
        if slots.half is not None:
            slots.half.show(slots.agents, slots.values)
        elif not self.layout.live:
            self.layout.copy(self.row, self.arrays)

    def end(self) -> None:
        """Keep the value, before the memory is freed."""
        self.last_p = self._slots.agents[0].p
        half = self._slots.half
        if self.layout.live or half is not None:
            self.arrays = self.layout.arrays(np.array(self.row if half is None else half.own[0]))
        del self.row


class Window:
    r"""A window: this rank's array, and a slot for each in-neighbour that it writes to at any time.

    .. math:: \text{slot}_{ij} \leftarrow w_{ij} x_j \quad\text{or}\quad \text{slot}_{ij} + w_{ij} x_j, \qquad
              x_i \leftarrow s_i x_i + \sum_j r_{ij}\, \text{slot}_{ij}

    Transfers do not block: a rank that is computing or sleeping does not delay its neighbours.
    Every transfer moves and scales the push-sum weight `p` exactly as it moves and scales the
    array, and no rank ever sees the two at different moments.

    Made by `Network.window`; leaving its context (or `close`) is collective.

    Attributes
    ----------
    value : array
        This rank's array: always the same object, which every call updates.  Neighbours that `get`
        it see changes at once; assign to it (``win.value = x``) to change it as a whole.  Copy it
        to keep it: ``win.value.copy()``.  An array on a device lies beside the memory that
        neighbours read: they see what is written into it after this rank's next transfer, `update`
        or `collect`, or after ``win.value = win.value``.
    p : float
        Its push-sum weight, 1 at first.
    versions, unread : dict of int to int
        Transfers into the slot of each in-neighbour since the last `update` or `collect`; and those
        of this rank that its out-neighbours have not taken so (on other nodes: that have not
        arrived).
    in_neighbors, out_neighbors : list of int
    node_neighbors : list of int
        The in-neighbours whose memory this rank maps.
    transport : {"shared", "messages", "rma"}
        How rows of the other in-neighbours travel, if there are any.
    locks : RankLocks
        A lock of each rank that its neighbours try to take.

    Notes
    -----
    On a node a transfer is one pass over memory that the ranks share, behind a lock per slot;
    elsewhere a message, which is sent as soon as the one before has arrived: rows that wait for
    that are added up, or replaced, so that memory is bounded.  After `flush()`, or `net.barrier()`,
    all that this rank has sent is in its slots.  Products and `p` are float64; slots of 16-bit
    arrays are float32.  Where `self_weight` and `dst_weights` sum to one and the value itself is
    sent, the value becomes the rest, value - sum of what was sent, so that sums over all ranks hold
    through millions of transfers.

    References
    ----------
    Kempe, Dobra, Gehrke: Gossip-based computation of aggregate information, FOCS 2003 (push-sum).

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> from mpi4py import MPI
    >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
    ...     with net.window(np.ones(2), mpidec.topology.ring(1)) as win:
    ...         win.put(win.value, self_weight=0.5)
    ...         win.collect(), win.p, win.versions
    (array([0.5, 0.5]), 0.5, {})
    """

    def __init__(
        self,
        context: Context,
        together: Collectives,
        messenger: WindowMessenger | None,
        topology: Topology,
        x: Arrays,
        layout: RowLayout,
        zero: bool,
        progress: bool,
        transport: str,
        ended: Ended,
        on_close: Callable[[Window], None],
    ):
        self._context, self._together, self._messenger = context, together, messenger
        self._slots = slots = Slots(
            context,
            together,
            messenger,
            topology,
            X=layout.row(x).reshape(1, -1),
            what="net.window",
            half=layout.half,
            transport=transport,
            ended=ended,
        )
        self._ended, self._records = ended, slots.agents[0]
        self._in = Neighbors("in-neighbours", "src_weights", slots.senders[0])
        self._out = Neighbors("out-neighbours", "dst_weights", slots.receivers[0])
        self.in_neighbors, self.out_neighbors = self._in.ranks, self._out.ranks
        self.transport = "shared" if slots.carrier is None else slots.carrier.name
        self.locks = RankLocks(context, slots, self._open)
        slots.others = self.locks.receive
        self._value, self.closed = WindowValue(layout, slots), False
        if not zero:
            self._records.fill()
        self._closing = ExitStack()
        self._closing.callback(slots.close)
        self._closing.callback(on_close, self)
        if progress and messenger is not None and not slots.unaided:
            messenger.helper.add(slots.poll)
            self._closing.callback(messenger.helper.remove, slots.poll)
        # No rank may write to a neighbour's slot before that one has prepared it.
        if context.size > 1:
            together.wait(context.comm.Ibarrier, "net.window")

    @property
    def node_neighbors(self) -> list[int]:
        return [rank for rank, near in zip(self.in_neighbors, self._slots.near[0]) if near]

    # The value

    @property
    def value(self) -> Any:
        return self._value.arrays

    @value.setter
    def value(self, x: Arrays) -> None:
        with self._context.engine:
            self._open()
            self._value.set(x)

    @property
    def p(self) -> float:
        return float(self._value.last_p if self.closed else self._records.p)

    @p.setter
    def p(self, p: float) -> None:
        with self._context.engine:
            self._open()
            self._records.p = _number("p", p)

    @property
    def versions(self) -> dict[int, int]:
        with self._context.engine:
            self._open()
            self._receive()
            return dict(zip(self.in_neighbors, self._records.versions()))

    # Transfers

    def put(
        self, x: Arrays, self_weight: float | None = None, dst_weights: RankWeights = None
    ) -> None:
        r"""Replace this rank's slots: :math:`\text{slot}_{ji} \leftarrow w_j x`, with the push-sum
        weight :math:`w_j p_i`.

        Parameters
        ----------
        x : array like the window's
        self_weight : float, optional
            Afterwards the value and `p` are multiplied by it.
        dst_weights : dict {rank: weight} or list of ranks (weights 1), optional
            A subset of the out-neighbours; all of them with weight 1 by default.

        Raises
        ------
        ValueError, TypeError
            Another shape, another dtype, ranks that are no out-neighbours, weights that are no
            finite numbers.

        Notes
        -----
        Communicates with these ranks only, and waits for none of them.
        """
        self._send(x, self_weight, dst_weights, False)

    def accumulate(
        self, x: Arrays, self_weight: float | None = None, dst_weights: RankWeights = None
    ) -> None:
        r"""Add to this rank's slots: :math:`\text{slot}_{ji} \leftarrow \text{slot}_{ji} + w_j
        x`; otherwise as `put`.
        """
        self._send(x, self_weight, dst_weights, True)

    def get(self, src_weights: RankWeights = None) -> None:
        r"""Read the values of in-neighbours into their slots: :math:`\text{slot}_{ij} \leftarrow
        w_j x_j`, with :math:`w_j p_j`.

        Parameters
        ----------
        src_weights : dict {rank: weight} or list of ranks (weights 1), optional
            A subset of the in-neighbours; all of them with weight 1 by default.

        Notes
        -----
        On a node it does not wait; ranks elsewhere answer when they make a call of this package.
        """
        request = self._get(src_weights)
        if request is not None:
            request.wait()

    def start_put(
        self, x: Arrays, self_weight: float | None = None, dst_weights: RankWeights = None
    ) -> Pending:
        """Begin `put`; complete when the rows are in their slots.  `x` may be changed at once."""
        self._send(x, self_weight, dst_weights, False)
        return self.sent()

    def start_accumulate(
        self, x: Arrays, self_weight: float | None = None, dst_weights: RankWeights = None
    ) -> Pending:
        """Begin `accumulate`; complete when the rows are in their slots.  `x` may be changed at
        once.
        """
        self._send(x, self_weight, dst_weights, True)
        return self.sent()

    def start_get(self, src_weights: RankWeights = None) -> Pending:
        """Begin `get`."""
        return Pending(self._get(src_weights), lambda: None)

    def _get(self, src_weights: RankWeights) -> GetRequest | None:
        with self._context.engine:
            self._open()
            weights = self._in.ones if src_weights is None else self._in.weights(src_weights)
            if not self._value.layout.live:
                self._value.store()
            if self._slots.carrier is None and self._slots.half is None:
                for k, w in enumerate(weights):
                    if w is not None:
                        self._records.get(k, w)
                return None
            request = self._slots.get(0, weights)
            self._poll()
            return request

    def _send(
        self, x: Arrays, self_weight: float | None, dst_weights: RankWeights, add: bool
    ) -> None:
        with self._context.engine:
            self._open()
            weights = self._out.ones if dst_weights is None else self._out.weights(dst_weights)
            own = None if self_weight is None else _number("self_weight", self_weight)
            value = self._value
            row = None if x is value.arrays else value.layout.row(x)
            if not value.layout.live:
                value.store()
            self._records.send(row, weights, own, add)
            if own is not None:
                value.show()
            if self._slots.carrier is not None:
                self._slots.poll()

    def sent(self) -> Pending:
        """Return a handle that completes when everything that this rank has sent is in its
        slots.
        """
        return Pending(None if self._slots.empty else self._slots, lambda: None)

    # The slots

    def update(
        self, self_weight: float | None = None, src_weights: RankWeights = None, reset: bool = False
    ) -> Any:
        r"""Combine the value with the slots: :math:`x_i \leftarrow s_i x_i + \sum_j r_{ij}\,
        \text{slot}_{ij}`, and `p` likewise.

        Parameters
        ----------
        self_weight : float, optional
        src_weights : dict {rank: weight} or list of ranks (weights 1), optional
            A subset of the in-neighbours.  Both or neither: by default all weights are 1 / (number
            of in-neighbours + 1).
        reset : bool
            Whether to empty the slots that were used (their `p` too).

        Returns
        -------
        array
            The value.

        Notes
        -----
        No communication.
        """
        with self._context.engine:
            self._open()
            if not isinstance(reset, (bool, np.bool_)):
                raise TypeError(f"update: reset is {reset!r:.60}, expected True or False")
            if (self_weight is None) != (src_weights is None):
                raise ValueError(
                    "update: self_weight and src_weights are given together, or neither of them "
                    "(uniform weights)"
                )
            if src_weights is None:
                own = 1 / (len(self.in_neighbors) + 1)
                weights: Weights = [own] * len(self.in_neighbors)
            else:
                own, weights = _number("self_weight", self_weight), self._in.weights(src_weights)
            return self._combine(own, weights, reset)

    def slot(self, rank: int) -> Any:
        """Return a copy of the slot of an in-neighbour: what `put`, `accumulate` or `get` have
        brought. Changes nothing.

        Raises
        ------
        ValueError
            If `rank` is no in-neighbour.

        Notes
        -----
        No communication.
        """
        with self._context.engine:
            self._open()
            if rank not in self._in.places:
                raise ValueError(
                    f"slot({rank!r}): expected one of the in-neighbours {self.in_neighbors}"
                )
            self._receive()
            row = np.empty_like(self._value.row)
            self._records.read(self._in.places[rank], row)
            return self._value.layout.arrays(row)

    def collect(self) -> Any:
        r"""Add all slots to the value and empty them: :math:`x_i \leftarrow x_i + \sum_j
        \text{slot}_{ij}`; the value.

        Nothing is lost, and nothing is counted twice, whatever the neighbours do meanwhile.
        """
        with self._context.engine:
            self._open()
            return self._combine(1.0, self._in.ones, True)

    def _combine(self, own: float, weights: Weights, reset: bool) -> Any:
        self._receive()
        value = self._value
        if not value.layout.live:
            value.store()
        self._records.update(own, weights, bool(reset))
        value.show()
        return value.arrays

    # Mutexes, order and the end

    def mutex(
        self, ranks: Iterable[int] | int | None = None, timeout: float | None = None
    ) -> AbstractContextManager[None]:
        """Mutual exclusion: ``with win.mutex():`` holds the mutexes of some ranks, one each.

        Parameters
        ----------
        ranks : int or iterable of int, optional
            The out-neighbours by default; ``[net.rank]`` is this rank's own.
        timeout : float, optional
            Seconds; `MPIDEC_TIMEOUT` by default.

        Raises
        ------
        TimeoutError
            The message names the rank that holds it, and for how long.
        RuntimeError
            This rank holds one of them already.
        """
        with self._context.engine:
            self._open()
        chosen = list(
            self.out_neighbors
            if ranks is None
            else ranks
            if isinstance(ranks, Iterable)
            else [ranks]
        )
        for rank in chosen:
            if not is_rank(rank) or not 0 <= rank < self._context.size:
                raise ValueError(
                    f"mutex of rank {rank!r}, expected ranks 0, ..., {self._context.size - 1}"
                )
        patience = None if timeout is None else _number("timeout", timeout, infinite=True)
        some = [int(rank) for rank in chosen]
        return self._slots.mutex.held(some, patience, self._slots.poll, self._open)

    @property
    def unread(self) -> dict[int, int]:
        """Transfers to each out-neighbour that it has not taken by `update` or `collect`; on
        other nodes, that have not arrived.
        """
        with self._context.engine:
            self._open()
            self._poll()
            return {rank: self._slots.unread(0, k) for k, rank in enumerate(self.out_neighbors)}

    def flush(self) -> None:
        """Return when all that this rank has sent is in its slots."""
        with self._context.engine:
            if not self.closed:
                self._open()
                self._slots.wait()

    def _poll(self) -> None:
        if self._slots.carrier is not None:
            self._slots.poll()

    def _receive(self) -> None:
        """Before slots are read, make sure that arrived rows are in them, whatever the helper is
        doing.
        """
        if self._slots.carrier is not None:
            self._slots.poll()
            self._slots.take(wait=True)
            self._open()  # the helper may have failed

    def _open(self) -> None:
        if self.closed:
            raise RuntimeError("the window is closed: make a new one")
        if self._context.matching.interrupted:
            self._context.matching.require_in_step()
        if self._messenger is not None and self._messenger.broken:
            raise RuntimeError(
                "an exception has ended the handling of messages, rows may be lost: make a new "
                "network"
            )

    def close(self) -> None:
        """Free the window; collective, and safe to repeat.  `value` and `p` stay readable.

        Raises
        ------
        RanksLost
            Ranks have died; the window is closed.
        """
        if self.closed:
            return
        try:
            self._complete()
        except Exception as error:
            lost = isinstance(error, RanksLost)
            if not (lost or died(error)):
                raise
            self._forget()
            raise (error if lost else without_the_dead("the end of a window")) from None
        self._forget()
        self._ended.free(self._together)

    def _complete(self) -> None:
        """Let the rows of this rank arrive, and meet the others."""
        context, op, number = self._context, "the end of a window", self._slots.number
        parent, children = tree(context.rank, context.size)
        near = children if parent is None else [parent, *children]
        with context.engine, self._together:
            self._slots.wait()
            # Or they are told where others are, also of those that leave after this agreement.
            call, before = context.matching.agree(op, ""), context.mixings
            ask = partial(context.matching.ask, near, call, op, "", before)
            least, most = self._together.minimum(np.array([number, -number]), op, ask)
            if least != -most:
                raise RuntimeError(
                    f"rank {context.rank} closes window {number} of the network, others "
                    "another one: "
                    "expected the same order on all ranks"
                )

    def _forget(self) -> None:
        """End without the other ranks."""
        if self.closed:
            return
        self._value.end()
        self.closed = True
        self._closing.close()
        del self._records

    def __enter__(self) -> Window:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or self._context.size == 1:
            self.close()  # else the other ranks may be anywhere: nothing collective now

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a window belongs to the ranks that have made it, and cannot be pickled: pickle "
            "win.value"
        )

    def __repr__(self) -> str:
        return (
            f"Window({self._value.layout.words}, rank {self._context.rank} of {self._context.size}, "
            f"{len(self.in_neighbors)} slots, "
            f"transport={self.transport!r}{', closed' * self.closed})"
        )


def _number(name: str, value: SupportsFloat | None, infinite: bool = False) -> float:
    try:
        number = math.nan if value is None or isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number) or (math.isinf(number) and not infinite):
        raise ValueError(f"{name} is {value!r}, expected a number")
    return number
