"""Time-varying topologies: schedules of one topology per step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ... import _validation as check
from ..._words import with_known_options
from .drawing import MOST_PHASES, draw
from .spectra import gap, gap_of_draws
from .topology import Topology, fingerprint, sums_in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS_DRAWN = 12  # of a schedule without a period
DRAWS = 200  # from which its spectral gap is estimated


class Schedule(ABC):
    """Sequence of topologies, one for each step k = 0, 1, 2, ...

    A periodic schedule is a `Periodic`, usually built by one function that lists the phases (see
    `one_peer` and `ceca`).  A schedule without a period (such as random draws) derives from this
    class, with `period` None and an `at` that depends only on its seed and k.
    """

    name: str
    n: int
    kind: str
    directed: bool
    period: int | None
    #: whether it is several graphs at once, which divide the columns of the rows
    divides_columns: ClassVar[bool] = False
    #: whether each step is the average over a sample of the agents
    samples: ClassVar[bool] = False

    @abstractmethod
    def at(self, k: int) -> Topology:
        """Return the topology of step k."""

    @property
    def choices(self) -> tuple[tuple[str, Schedule], ...]:
        """Return this schedule alone: it has no other weights to choose from."""
        return (("", self),)

    def chosen(self, weights: str) -> Schedule:
        """Return this schedule, whatever weights a search has chosen."""
        return self

    @property
    def is_tree(self) -> bool:
        """Whether there is one graph, and it is undirected and connected with n - 1 edges."""
        return self.period == 1 and self.at(0).is_tree

    def spectral_gap(self) -> float:
        r"""Return the spectral gap: the fraction by which a step reduces the largest disagreement,
        in the mean square, estimated from the first 200 steps.

        That is :math:`1 - \sqrt{\rho(E[W^T W] - \tfrac1n 1 1^T)}`, of a W that is not doubly
        stochastic with averages of columns or rows removed.
        """
        return gap_of_draws((self.at(k).W.toarray() for k in range(DRAWS)), self.kind)

    @abstractmethod
    def fingerprint(self) -> int:
        """Return a 63-bit hash of the whole schedule, the same on every rank and in every
        process.
        """

    def plot(self, style: str = "screen") -> Figure:
        """Plot the graphs of one period, and the disagreement that is left after each step.

        Without a period these are the first 12 steps; graphs beyond the seventh are not drawn.

        Parameters
        ----------
        style : str
            "screen" or "paper" (serif letters).

        Returns
        -------
        matplotlib.figure.Figure
            See `Topology.plot`.

        Raises
        ------
        ValueError
            There are more than 512 agents.

        Examples
        --------
        >>> from mpidec.topology import one_peer_exponential
        >>> len(one_peer_exponential(8).plot().axes)  # three graphs and the disagreement
        4
        """
        steps = self.period or STEPS_DRAWN
        graphs = min(steps, MOST_PHASES)
        more = (
            ""
            if graphs == self.period
            else f"; the first {graphs} of {self.period or 'endless'} graphs"
        )
        return draw(
            self.name,
            [self.at(k) for k in range(steps)],
            self.kind,
            self.spectral_gap() if self.period and self.kind != "any" else None,
            more,
            style,
        )

    def __eq__(self, other: object) -> bool:
        return (
            self.fingerprint() == other.fingerprint()
            if isinstance(other, Schedule)
            else NotImplemented
        )

    def __hash__(self) -> int:
        return self.fingerprint()

    @property
    def parameters(self) -> Mapping[str, object]:
        """Parameters of its random draws, such as `p` and `seed`."""
        return {}

    @property
    def draws(self) -> bool:
        """Whether its graphs are drawn at random, so that another seed gives other ones."""
        return "seed" in self.parameters

    def __repr__(self) -> str:
        drawn = "".join(f", {name}={value!r}" for name, value in self.parameters.items())
        return (
            f"Schedule({self.name!r}, n={self.n}, kind={self.kind!r}, directed={self.directed}, "
            f"period={self.period}{drawn})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Periodic(Schedule):
    """Schedule that repeats a fixed list of phases.

    Parameters
    ----------
    name : str
        Name of the function that built it, e.g. "one_peer_exponential".
    phases : tuple of Topology
        The topologies of the steps 0, ..., period - 1, all with the same n and kind (doubly
        stochastic ones combine with either of the other kinds).

    Examples
    --------
    >>> from mpidec.topology import chain, ring
    >>> schedule = Periodic("now_and_then", (chain(5), chain(5), ring(5)))
    >>> [schedule.at(k).name for k in range(4)]
    ['chain', 'chain', 'ring', 'chain']
    """

    name: str
    phases: tuple[Topology, ...]

    def __post_init__(self) -> None:
        first = self.phases[0]
        for k, phase in enumerate(self.phases):
            if phase.n != first.n:
                raise ValueError(
                    f"{self.name}: topology {k} ({phase.name}) has {phase.n} agents and topology 0 "
                    f"({first.name}) {first.n}, expected the same number in all"
                )
        kinds = [phase.kind for phase in self.phases]
        found = [kind for kind in ("row", "column", "pair", "any") if kind in kinds]
        if len(found) > 1:
            k, j = kinds.index(found[0]), kinds.index(found[1])
            one, other = (sums_in_words(kind) for kind in found[:2])
            raise ValueError(
                f"{self.name}: topology {k} ({self.phases[k].name}) is {one} and topology {j} "
                f"({self.phases[j].name}) {other}, expected one kind (doubly stochastic ones "
                "combine with any)"
            )

    @property
    def n(self) -> int:  # type: ignore[override]
        """Number of agents."""
        return self.phases[0].n

    @property
    def kind(self) -> str:  # type: ignore[override]
        """Stochasticity of all phases: "doubly", "row", "column" or "pair"."""
        return next((phase.kind for phase in self.phases if phase.kind != "doubly"), "doubly")

    @property
    def directed(self) -> bool:  # type: ignore[override]
        """Whether any phase is directed."""
        return any(phase.directed for phase in self.phases)

    @property
    def period(self) -> int:  # type: ignore[override]
        """Number of phases."""
        return len(self.phases)

    def at(self, k: int) -> Topology:
        """Return the topology of step k >= 0: phase k modulo the period."""
        step = k if type(k) is int and k >= 0 else check.integer(k, f"{self.name}.at: k", least=0)
        return self.phases[step % len(self.phases)]

    def spectral_gap(self) -> float:
        r"""Return the spectral gap: the fraction by which a step reduces the largest disagreement,
        averaged over a period.

        .. math:: 1 - \sigma_2(W^{(T-1)} \cdots W^{(1)} W^{(0)})^{1/T}

        with :math:`|\lambda_2|` in place of :math:`\sigma_2` if a phase is not doubly stochastic.
        The average is geometric; 1 means that one period averages exactly.

        Examples
        --------
        >>> from mpidec.topology import one_peer_exponential
        >>> one_peer_exponential(8).spectral_gap()
        1.0
        """
        return gap([phase.source for phase in self.phases], self.kind)

    def fingerprint(self) -> int:
        """Return a 63-bit hash of the name and the phases, the same on every rank and in every
        process.
        """
        return fingerprint(self.name, self.n, [phase.fingerprint() for phase in self.phases])


def refuse_filter(where: str, topology: Topology | Schedule) -> None:
    """Refuse graph filters, which do not average.

    Raises
    ------
    ValueError
    """
    if topology.kind == "any":
        raise ValueError(
            f"{where}: {topology.name} is a graph filter (kind 'any'), expected rows or columns "
            "that "
            'sum to 1: topology.from_networkx(G) gives its graph weights="metropolis"'
        )


def refuse_striped(where: str, topology: Topology | Schedule) -> None:
    """Refuse several graphs at once, whose steps are none of a schedule's.

    Raises
    ------
    ValueError
    """
    if topology.divides_columns:
        raise ValueError(
            f"{where}: {topology.name} is several graphs at once, which divide the columns of the "
            "rows, expected one graph in "
            f"each step: take one of them, {topology.name}(...)[0]"
        )


@with_known_options
def cycle(topologies: Iterable[Topology | Schedule]) -> Schedule:
    """Periodic schedule that cycles through the given topologies.

    Parameters
    ----------
    topologies : iterable of Topology or Schedule
        At least one, all with the same n.  A periodic schedule contributes one period.

    Returns
    -------
    Schedule
        Doubly stochastic if all topologies are; row or column stochastic, or of pairs, if some are
        and the others are doubly stochastic.

    Raises
    ------
    TypeError
        The argument is not a list of topologies and schedules.
    ValueError
        The list is empty, the numbers of agents differ, a schedule has no period or is several
        graphs at once, or row stochastic topologies, column stochastic ones and pairs are mixed.

    Examples
    --------
    >>> from mpidec.topology import complete, ring
    >>> cycle([ring(4), ring(4), complete(4)])
    Schedule('cycle', n=4, kind='doubly', directed=False, period=3)
    """
    if isinstance(topologies, (Topology, Schedule)) or not isinstance(topologies, Iterable):
        raise TypeError(
            f"cycle: expected a list of topologies, got {topologies!r} "
            f"({type(topologies).__name__})"
        )
    phases: list[Topology] = []
    for k, item in enumerate(topologies):
        if not isinstance(item, (Topology, Schedule)):
            raise TypeError(
                f"cycle: element {k} is {item!r} ({type(item).__name__}), expected a topology"
            )
        refuse_striped(f"cycle: element {k}", item)
        if item.period is None:
            raise ValueError(
                f"cycle: element {k} ({item.name}) has no period, expected topologies or periodic "
                "schedules"
            )
        phases.extend(item.at(r) for r in range(item.period))
    if not phases:
        raise ValueError("cycle: got no topologies, expected at least one")
    return Periodic("cycle", tuple(phases))
