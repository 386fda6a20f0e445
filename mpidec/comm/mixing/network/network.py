"""The network: agents on ranks, and its public interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, TypeVar, cast

import numpy as np

from .... import _validation as check
from ...._process import hide
from ....topology.internals import TopologyLike, as_graph, refuse_filter
from ...rma import CARRIERS, Arrays, RowLayout, Slots, Window, WindowMessenger
from ...runtime import MPI, Communicator, made, over_mpi
from ...transport import Ending
from ..base.agreement import Agreement
from ..base.traced import trace
from ..local.view import LocalView
from ..mixers.factory import Mixers
from .operators import NetworkOperators
from .spanning import flood, found_tree

if TYPE_CHECKING:
    from ....topology import Schedule, Topology

# What `dir(net)` leaves out: the parts of a network that loops of solvers and the other rooms use.
_FOR_DRIVERS = (
    "agreement",
    "agreeing",
    "collectives",
    "context",
    "duplicate",
    "ended",
    "engine",
    "keeping",
    "keeping_rows",
    "matching",
    "messages",
    "mixers",
    "node",
    "operation",
    "partition",
    "raising_together",
    "renewal",
    "row_sums",
    "serial",
    "slots",
    "wait_for_readers",
    "withdraw",
)


P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class forwarded(Generic[P, ResultT]):
    """A method of `net.local` that is one of the network, too; on a class, the function, with
    its documentation.
    """

    def __init__(self, method: Callable[Concatenate[LocalView, P], ResultT]):
        self._method = method

    def __get__(self, net: Network | None, owner: type) -> Callable[P, ResultT]:
        if net is None:
            return cast("Callable[P, ResultT]", self._method)
        bound: Callable[P, ResultT] = getattr(net.local, self._method.__name__)
        net.__dict__[self._method.__name__] = bound  # the next call finds it there
        return bound


class _Duplicate:
    """A network that closes with another one."""

    def __init__(self, net: Network):
        self._net, self.closed = net, False

    def close(self, ends: Ending) -> None:
        """Close the network, or leave it where that is not possible on all ranks."""
        self.closed = True
        if ends == "complete":
            self._net.close()
        else:
            self._net._leave()


class Network(NetworkOperators):
    """`n` agents over the ranks of a communicator, in blocks.

    Parameters
    ----------
    n : int, optional
        Number of agents; one per rank by default.  Any number is allowed: a rank hosts `n / size`
        agents, rounded up on the first ranks and down on the last; with fewer agents than ranks the
        last ranks host none.
    comm : mpi4py.MPI.Intracomm, optional
        `MPI.COMM_WORLD` by default, or this process alone where there is no MPI.  The network works
        on a duplicate that it owns, so that its messages never meet yours.
    process_group : torch.distributed.ProcessGroup, optional
        In place of `comm`: the ranks of a process group, such as `torch.distributed.group.WORLD`
        under torchrun; MPI is not loaded.  Rows travel over TCP connections that the ranks find
        through the store of the group, rows on devices by messages of its backend (NCCL).
        Results have the same bits as over MPI.  There are no one-sided transfers.
    transport : {"auto", "shared", "neighbor", "p2p"}, optional
        How rows travel between ranks (or the environment variable `MPIDEC_TRANSPORT`): `shared`
        reads them where they lie in the memory of the node, `neighbor` sends them by neighbourhood
        collectives on the distributed-graph communicator, `p2p` by point-to-point messages.  `auto`
        takes the first between the ranks of a node and the third between nodes.
    windows : {"auto", "shared", "messages", "rma"}
        How windows transfer rows (or the environment variable `MPIDEC_WINDOWS`), where `window`
        does not say otherwise.
    timeline : str, optional
        Where each rank writes what it does, and when, for Perfetto: `<timeline><rank>.json` (or the
        environment variable `MPIDEC_TIMELINE`, or `BLUEFOG_TIMELINE`, with BlueFog's names).  On
        all ranks, or on none.
    hide_launcher : bool
        Whether the variables of the launcher (`PMI_*`, `OMPI_COMM_WORLD_*`, `SLURM_PROCID`,
        `WORLD_SIZE`, `MASTER_ADDR`, ...) are removed from the environment of this process and of
        those that it starts, once MPI has started: for libraries such as Accelerate, which take
        them for a job of torch.distributed.

    Attributes
    ----------
    n, lo, hi, m : int
        All agents; this rank hosts the `m` agents `lo:hi`.
    rank, size : int
    comm : mpi4py.MPI.Intracomm or GroupComm
        `GroupComm` has the same calls, as far as the package uses them.
    partition : Partition
        Agents over ranks.

    local : LocalView
        The calls for programs with one agent per rank, which the network has, too.
    collectives : Collectives
        Small decisions of all ranks.
    context : Context
        What objects on this network are handed: communicator, matching of calls, memory of the
        node, progress.
    engine, matching, node : ProgressEngine, Matching, NodeMemory or None
        Parts of the context, for the drivers.

    Raises
    ------
    ValueError
        On every rank, if `n` is not a whole number >= 1, or `n` or `transport` differ between
        ranks.
    RuntimeError
        If the launcher started several processes and each believes it is alone.

    Notes
    -----
    For drivers and solvers' loops there are also `operation` (a call of all ranks, compared before
    it meets in MPI), `row_sums` and `messages` (sums of rows, several under way at once, and the
    wait for them), `duplicate` (for calls that ranks make at different places among those of the
    program), `raising_together` (an exception on one rank ends all) and `withdraw` (it ends the
    next call of all), and `keeping`,
    `keeping_rows` and `wait_for_readers` (steps that never change rows which they have handed to
    `W` need not wait for their readers); nothing else is for other packages.

    Collective over `comm`.  A context manager; `close()` frees all that the network and its mixers
    hold.  A network that an exception leaves on all ranks is freed when they make the next one.
    One thread at a time may be in a call of a network; several threads need a network each, and an
    MPI library with `MPI_THREAD_MULTIPLE`.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
    ...     W = net.mixer(mpidec.topology.ring(4))
    ...     W(np.array([[0.], [3.], [0.], [0.]])).ravel().tolist()
    [1.0, 1.0, 1.0, 0.0]
    """

    def __init__(
        self,
        n: int | None = None,
        comm: Communicator | None = None,
        *,
        process_group: object = None,
        transport: str | None = None,
        windows: str | None = None,
        timeline: str | None = None,
        hide_launcher: bool = False,
    ):
        super().__init__(
            n,
            comm,
            process_group=process_group,
            transport=transport,
            windows=windows,
            timeline=timeline,
        )
        if hide_launcher:
            hide()
        self.agreement = Agreement(self.context, self.collectives)
        self.mixers = Mixers(self.agreement, self._mixers)
        self.local = LocalView(self.agreement, self.matching, self.mixers, self._windows)
        trace(self, "network", self.context.timeline)

    set_topology = forwarded(LocalView.set_topology)
    set_machine_topology = forwarded(LocalView.set_machine_topology)
    machines = forwarded(LocalView.machines)
    neighbor_allreduce = forwarded(LocalView.neighbor_allreduce)
    start_neighbor_allreduce = forwarded(LocalView.start_neighbor_allreduce)
    neighbor_allgather = forwarded(LocalView.neighbor_allgather)
    start_neighbor_allgather = forwarded(LocalView.start_neighbor_allgather)
    exchange = forwarded(LocalView.exchange)
    start_exchange = forwarded(LocalView.start_exchange)
    pair_gossip = forwarded(LocalView.pair_gossip)
    start_pair_gossip = forwarded(LocalView.start_pair_gossip)
    hierarchical_neighbor_allreduce = forwarded(LocalView.hierarchical_neighbor_allreduce)
    start_hierarchical_neighbor_allreduce = forwarded(
        LocalView.start_hierarchical_neighbor_allreduce
    )
    allreduce = forwarded(LocalView.allreduce)
    start_allreduce = forwarded(LocalView.start_allreduce)
    allgather = forwarded(LocalView.allgather)
    start_allgather = forwarded(LocalView.start_allgather)
    broadcast = forwarded(LocalView.broadcast)
    start_broadcast = forwarded(LocalView.start_broadcast)
    barrier = forwarded(LocalView.barrier)
    start_barrier = forwarded(LocalView.start_barrier)

    @property
    def topology(self) -> Topology | Schedule | None:
        """What `set_topology` has set last."""
        return self.local.topology

    @property
    def machine_topology(self) -> Topology | Schedule | None:
        """What `set_machine_topology` has set last."""
        return self.local.machine_topology

    def duplicate(self, transport: str | None = None) -> Network:
        """Return another network of the same agents on the same ranks, whose calls do not meet
        those of this one, and which closes with this one.  Collective.
        """
        transport = transport or self.transport
        made = Network(self.n, self.comm, transport=transport, windows=self.windows)
        made.check = self.check
        self._mixers.append(_Duplicate(made))
        return made

    def renewal(self) -> Callable[[int, Communicator], None]:
        """Return a function (n, comm), collective over `comm`, that makes this network, in place,
        one of `n` agents on the ranks that are left when some have died.
        """
        transport, windows, timeline = self.transport, self.windows, self._given_timeline
        checked = self.check

        def renew(n: int, comm: Communicator) -> None:
            self.__dict__.clear()
            Network.__init__(self, n, comm, transport=transport, windows=windows, timeline=timeline)
            self.check = checked

        return renew

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - {*_FOR_DRIVERS})

    @property
    def agents(self) -> range:
        """The agents that this rank hosts."""
        return range(self.lo, self.hi)

    def spanning_tree(self, topology: TopologyLike, rounds: int | None = None) -> Topology:
        """Return a spanning tree that the agents find by messages to neighbours, knowing only their
        own.

        Each agent tells its neighbours the smallest number of an agent that it has heard of, the
        root, and its own distance from it; its parent is the neighbour that is closest to the root,
        of several the one with the smallest number.

        Parameters
        ----------
        topology : Topology, str, networkx graph, matrix or function
            Undirected and connected.
        rounds : int, optional
            Number of messages over each edge, at least the diameter of the graph; by default n - 1,
            which suffices for any.

        Returns
        -------
        Topology
            The tree `mpidec.topology.spanning_tree(topology, ties="number")`, whatever the number
            of ranks, with metropolis weights.

        Raises
        ------
        ValueError, TypeError
            On every rank: the graph is directed, not connected, or time-varying, or `rounds` is
            less than its diameter.

        Notes
        -----
        Collective.  Three integers travel over each edge in each round.  At the end, the parents
        are gathered on all ranks, since a `Topology` describes all agents.

        Examples
        --------
        >>> import mpidec
        >>> with mpidec.Network(9, comm=MPI.COMM_SELF) as net:
        ...     net.spanning_tree(mpidec.topology.torus(9)).neighbors(0)
        array([1, 2, 3, 6])
        """
        with self.agreeing("net.spanning_tree"):
            from ....topology.internals import undirected_edges

            graph = cast("Topology", as_graph(topology, self.n))
            undirected_edges("net.spanning_tree", graph)
            limit = max(1, self.n - 1) if rounds is None else rounds
            limit = check.integer(limit, "net.spanning_tree: rounds")
        mixer = self.mixer(graph)
        known = self.gather(flood(mixer.at(0), graph, self.agents, limit))
        mixer.close()
        with self.collectives:
            known = self.collectives.broadcast(known, 0, "net.spanning_tree")
        return found_tree(np.asarray(known), graph, limit)

    def window(
        self,
        x: Arrays,
        topology: TopologyLike | None = None,
        zero: bool = True,
        progress: bool | None = None,
        transport: str | None = None,
    ) -> Window:
        """Return a one-sided window: `x`, and a slot for each in-neighbour, which writes to it at
        any time.

        Parameters
        ----------
        x : array, or list of arrays of one dtype
            Of any shape, float16 to complex128, NumPy or PyTorch (also bfloat16); the same shape
            and dtype on all ranks.
        topology : Topology, str, networkx graph, matrix or function, optional
            Of the ranks, or a name such as "ring"; the one that was set with `set_topology` by
            default.
        zero : bool
            Whether the slots are zeros at first, or copies of `x` (with push-sum weight 0).
        progress : bool, optional
            Whether a thread of this rank handles the messages of ranks on other nodes while this
            rank computes, or is in an MPI call of the program; by default where MPI has
            `MPI_THREAD_MULTIPLE`, which it needs.  Within a node nobody needs it, and no thread is
            started.
        transport : {"auto", "shared", "messages", "rma"}, optional
            How rows travel; that of the network by default.  `shared`: ranks write to memory that
            all of them map, on one node. `messages`: in messages of MPI.  `rma`: by one-sided calls
            of MPI (passive target); `mpidec doctor` says whether a network adapter performs such
            calls itself.  `auto`: `rma` for ranks on several nodes if the adapters of all of them
            do; otherwise as `shared` on a node, and as `messages` between nodes.

        Returns
        -------
        Window
            With `value` a copy of `x`.

        Raises
        ------
        ValueError, TypeError
            On every rank: no topology, arrays that differ between ranks, or `shared` where ranks
            map no memory of each other.
        RuntimeError
            On every rank: `rma`, and the MPI library cannot do it.

        Notes
        -----
        Collective.  See `mpidec.comm.rma.Window`.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     with net.window(np.arange(3.), mpidec.topology.ring(1)) as win:
        ...         win.put(2 * win.value)
        ...         win.update().tolist()
        [0.0, 1.0, 2.0]
        """
        with self.agreeing("net.window"):
            over_mpi(self.comm, "net.window")
            self.local.one_agent_each()
            if topology is None:
                topology = self.topology
            if topology is None:
                raise ValueError(
                    "net.window: no topology, expected one as an argument, or "
                    "net.set_topology(topology) before"
                )
            graph = as_graph(topology, self.n)
            refuse_filter("net.window", graph)
            if graph.n != self.n or graph.period != 1:
                raise ValueError(
                    f"net.window: the {graph.name} topology has {graph.n} agents and period "
                    f"{graph.period}, "
                    f"expected a static topology of {self.n}"
                )
            if progress and MPI.Query_thread() < MPI.THREAD_MULTIPLE:
                raise ValueError(
                    "net.window: progress=True needs MPI_THREAD_MULTIPLE, which this MPI library "
                    "does not offer: "
                    "leave it out"
                )
            if progress is None:
                progress = MPI.Query_thread() >= MPI.THREAD_MULTIPLE
            way = self.windows if transport is None else transport
            check.choice(way, "net.window: transport", CARRIERS)
            layout = RowLayout(x)
        with self.collectives:
            if self.size > 1:
                self.mixers.same_everywhere(graph, "net.window")
                self.operation("net.window", f"{layout.words}, zero={bool(zero)}, transport={way}")
            window = Window(
                self.context,
                self.collectives,
                self._window_messenger("windows"),
                topology=graph.at(0),
                x=x,
                layout=layout,
                zero=zero,
                progress=bool(progress),
                transport=way,
                ended=self.ended,
                on_close=self._windows.remove,
            )
        self._windows.append(trace(window, "window", self.context.timeline))
        return window

    def slots(self, topology: Topology, X: np.ndarray) -> Slots:
        """Values and slots of the agents of a static topology: what windows and asynchronous
        methods are made of.

        Parameters
        ----------
        topology : Topology
            Of `n` agents.
        X : array (m, count)
            The values of the local agents at first, float32 or float64.

        Notes
        -----
        Collective.  See `mpidec.comm.rma.slots.Slots`.
        """
        with self.collectives:
            if self.size > 1:
                self.mixers.same_everywhere(topology, "net.slots")
                self.operation("net.slots", f"rows of {X.shape[1]} {X.dtype}")
            return Slots(
                self.context,
                self.collectives,
                self._window_messenger("slots"),
                topology,
                X,
                "net.slots",
            )

    def _window_messenger(self, what: str) -> WindowMessenger | None:
        """Return the messages of windows, which a helper may look after, or of other slots, whose
        receivers are not made for that.
        """
        if self.size > 1 and what not in self._messengers:
            comm = over_mpi(self.comm, "net.slots")
            self._messengers[what] = WindowMessenger(made(comm, comm.Dup), self.engine)
        return self._messengers.get(what)
