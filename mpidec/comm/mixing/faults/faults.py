"""Faults: attacks, noise and losses on the edges, as frozen values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from .... import _validation as check
from ...._complex import from_reals, is_complex, width
from ...._random import Streams, uniform
from ...._words import Drawing, word
from ....exceptions import RunsError
from ...kernels import difference
from ..base.edges import LocalEdges
from ..base.step import MAX_CALLS

if TYPE_CHECKING:
    from ....topology import Topology

Lost = Callable[[int, np.ndarray, np.ndarray], np.ndarray]
Attack = (
    str
    | float
    | Callable[[int, int, np.ndarray], object]
    | Callable[[int, int, np.ndarray, int], object]
)
RobustRule = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
ATTACKS = ("sign_flip",)
FILLS = ("renormalize", "own", "zero")


class Round(NamedTuple):
    """A step over the edges of one graph: the arguments that faults need.

    Attributes
    ----------
    step : int
    agents : range
        The agents on this rank.
    edges : LocalEdges
        Their edges.
    graph, graphs : int
        Number of the graph among those that a row is divided among, and how many there are.
    """

    step: int
    agents: range
    edges: LocalEdges
    graph: int = 0
    graphs: int = 1


class Average:
    """The averages of one step: of each local agent's own row, and of what arrives over its edges.

    Parameters
    ----------
    own : array (m,)
        The weights of the local agents for themselves.
    at : Round
    lost : array (edges,) of bool, optional
        The edges into the local agents whose messages are lost.
    fill : str
        What takes the place of a lost row; see `Loss`.

    Attributes
    ----------
    weighted : bool
        Whether they are weighted sums.
    """

    weighted = True

    def __init__(
        self, own: np.ndarray, at: Round, lost: np.ndarray | None = None, fill: str = "zero"
    ):
        self.edges, self.lost, self.own = at.edges, lost, own[:, None]
        self._weights = at.edges.into.weights[:, None]
        self._scale: np.ndarray | None = None
        if lost is not None:
            self._complete(~lost[:, None], fill)

    def _complete(self, arrives: np.ndarray, fill: str) -> None:
        missing = self.edges.sum(self._weights * ~arrives)
        self._weights = self._weights * arrives
        arrived = self.own + self.edges.sum(self._weights)
        scale, kept = np.ones_like(self.own), np.full(self.own.shape, fill == "own")
        if fill == "renormalize":
            kept = arrived == 0
            np.divide(arrived + missing, arrived, out=scale, where=~kept)
        self._scale, self.own = scale, self.own * scale + missing * kept

    def take(self, rows: np.ndarray, arrived: np.ndarray, out: np.ndarray) -> None:
        """Write the averages of `rows` (m, d) and of those that arrived, (edges, d), to `out`;
        `arrived` may change.
        """
        arrived *= self._weights.astype(rows.dtype)
        sums = self.edges.sum(arrived)
        if self._scale is not None:
            sums *= self._scale.astype(rows.dtype)
        np.add(rows * self.own.astype(rows.dtype), sums, out=out)

    def difference(self, rows: np.ndarray, arrived: np.ndarray, out: np.ndarray) -> None:
        """Write the averages less `rows` to `out`, of agents that lose nothing with the bits of
        `(W - I) X`.
        """
        difference(self.edges.terms, rows, arrived, out)
        if self.lost is not None and self.lost.any():
            some = np.unique(self.edges.places[self.lost])
            averages = np.empty_like(rows)
            self.take(rows, arrived, averages)
            out[some] = averages[some] - rows[some]


class Fault(Drawing, ABC):
    """Base class of the faults of a mixer's rows: a frozen value, which overrides one of three
    methods.

    `repr` is the call that adds it to a mixer, `str` says what it does to the limit of exact
    methods, "" for nothing.

    Attributes
    ----------
    call : str
        The method of a mixer that adds it.
    columnwise : bool
        Whether it does the same to each column of the rows.
    additive : bool
        Whether it adds random errors of mean zero to the rows, which some exact methods integrate.
    weighted : bool
        Whether averages remain weighted sums of rows.
    draws : bool
        Whether it draws random numbers, which a seed changes; by default, whether it has a
        parameter `seed`.
    """

    call: ClassVar[str]
    columnwise: bool = True
    weighted: ClassVar[bool] = True

    @property
    def additive(self) -> bool:
        return False

    @abstractmethod
    def __str__(self) -> str: ...

    def check(self, topology: Topology, static: bool) -> None:
        """Refuse a graph, of a static topology or a schedule, that it cannot be added to."""

    def leave(self, rows: np.ndarray, at: Round) -> np.ndarray:
        """Return what is sent in place of `rows`, one for each edge out of the local agents."""
        return rows

    def arrive(self, rows: np.ndarray, at: Round, call: int) -> np.ndarray:
        """Return what is received in place of `rows`, one for each edge into the local agents, in a
        call of the step; they may change.
        """
        return rows

    def average(self, own: np.ndarray, at: Round) -> Average:
        """Return the averages of what has arrived, and of the agents' own rows with these
        weights.
        """
        return Average(own, at)

    def of_runs(self, runs: int) -> Fault:
        """Return the fault of rows that have those of several runs one after the other, each with
        draws of its own.

        Raises
        ------
        RunsError
            If it acts on rows as a whole.
        """
        if self.columnwise and not self.draws:
            return self
        does = "draws once for" if self.columnwise else "computes with"
        raise RunsError(
            f"runs is {runs}, but {self!r} {does} a whole row, which is that of all runs: expected "
            "runs=1, with another seed for each run"
        )


class Faults(tuple[Fault, ...]):
    """Faults in the order in which they act on rows, divided by the end of the edges at which they
    act.
    """

    @cached_property
    def leaving(self) -> list[Fault]:
        """The faults that modify outgoing rows."""
        return [fault for fault in self if type(fault).leave is not Fault.leave]

    @cached_property
    def arriving(self) -> list[Fault]:
        """The faults that modify arriving rows."""
        return [fault for fault in self if type(fault).arrive is not Fault.arrive]

    @cached_property
    def averaging(self) -> Fault:
        """The last fault that defines its own average."""
        changed = [fault for fault in self if type(fault).average is not Fault.average]
        return (changed or self)[-1]

    def average(self, own: np.ndarray, at: Round) -> Average:
        """Return the average of the fault that defines its own; see `Fault.average`."""
        return self.averaging.average(own, at)


@dataclass(frozen=True, repr=False)
class Attacks(Fault):
    r"""Agents that send other rows than their own; added by `Mixer.attacked`.

    .. math:: Y_i = w_{ii} X_i + \sum_{j \ne i} w_{ij} a_{ij}(X_j)

    Parameters
    ----------
    attacks : dict
        See `Mixer.attacked`.
    n : int
        Number of agents.

    Notes
    -----
    Sent per call: as without attacks.  An attacker computes like all others; only what it sends is
    replaced.
    """

    attacks: Mapping[int, Attack]
    n: int
    # The agents whose functions are told the receiver.
    told: frozenset[int] = field(init=False)
    call: ClassVar[str] = "attacked"

    def __post_init__(self) -> None:
        if not isinstance(self.attacks, Mapping):
            raise TypeError(
                f"attacked: attacks is {self.attacks!r:.60}, expected a dict of agents and what "
                "they "
                "send: {3: 'sign_flip', 5: 100.0}"
            )
        attacks: dict[int, Attack] = {}
        for agent, attack in self.attacks.items():
            number = check.integer(agent, "attacked: agent", least=0, most=self.n - 1)
            if isinstance(attack, str):
                check.choice(attack, f"attacked: the attack of agent {number}", ATTACKS)
            elif not (callable(attack) or check.is_number(attack)):
                raise TypeError(
                    f"attacked: the attack of agent {number} is {attack!r}, expected 'sign_flip', "
                    "a number that it sends "
                    "in all entries, or a function of (step, agent, row) or (step, agent, row, "
                    "receiver)"
                )
            if number in attacks:
                raise ValueError(
                    f"attacked: agent {number} is named twice, expected one attack of each agent"
                )
            attacks[number] = attack
        functions = {agent: attack for agent, attack in attacks.items() if callable(attack)}
        told = {agent for agent, attack in functions.items() if _is_told(attack)}
        for agent, attack in functions.items():
            who = ("receiver",) if agent in told else ()
            check.takes(
                attack, f"attacked: the attack of agent {agent}", "step", "agent", "row", *who
            )
        object.__setattr__(self, "attacks", attacks)
        object.__setattr__(self, "told", frozenset(told))
        object.__setattr__(self, "columnwise", not functions)

    def __repr__(self) -> str:
        return f"attacked({word(self.attacks)})"

    def __str__(self) -> str:
        agents = ", ".join(map(str, sorted(self.attacks)))
        return f"wrong rows are sent (attackers: {agents})" if agents else ""

    def leave(self, rows: np.ndarray, at: Round) -> np.ndarray:
        if self.attacks.keys().isdisjoint(at.agents):
            return rows
        sent: np.ndarray = rows.copy()
        _, senders, _ = out = at.edges.out_of
        for edge in np.flatnonzero(np.isin(senders, [*self.attacks])).tolist():
            agent = int(senders[edge])
            attack = self.attacks[agent]
            if callable(attack):
                told = (int(out.receivers[edge]),) * (agent in self.told)
                made = attack(at.step, agent, rows[edge].copy(), *told)
                sent[edge] = checked(made, f"the attack of agent {agent}", rows[edge], number=True)
            else:
                sent[edge] = -rows[edge] if isinstance(attack, str) else attack
        return sent


def _is_told(attack: Callable[..., object]) -> bool:
    """Return whether a function has a fourth parameter `receiver`."""
    try:
        return list(signature(attack).parameters)[3:4] == ["receiver"]
    except (TypeError, ValueError):  # it has no signature
        return False


@dataclass(frozen=True, repr=False)
class LinkNoise(Fault):
    r"""Gaussian noise on arriving rows; added by `Mixer.noisy`.

    .. math:: Y_i = w_{ii} X_i + \sum_{j \ne i} w_{ij} (c(X_j) + \sigma \xi_{ij}), \qquad
              c(x) = \min(1, C / \|x\|)\, x

    with independent standard normal :math:`\xi_{ij}` for each step, each call within it, each edge
    and each entry (circular and of variance 1 for complex rows); without `clip`, c(x) = x.

    Parameters
    ----------
    sigma, seed, clip
        See `Mixer.noisy`.
    runs : int
        Number of runs whose rows a row has one after the other: run r has the seed ``seed + r``.

    Notes
    -----
    Sent per call: as without noise.  The average of all agents is preserved in expectation only,
    and not if rows are clipped.
    """

    sigma: float
    seed: int = 0
    clip: float | None = None
    runs: int = 1
    call: ClassVar[str] = "noisy"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", check.number(self.sigma, "noisy: sigma", least=0))
        Streams(self.seed, "channels")  # refuses a wrong seed
        if self.clip is not None:
            object.__setattr__(self, "clip", check.number(self.clip, "noisy: clip", above=0))
        object.__setattr__(self, "columnwise", self.clip is None)

    def __repr__(self) -> str:
        clip = "" if self.clip is None else f", clip={self.clip}"
        return f"noisy({self.sigma}, seed={self.seed}{clip})"

    def __str__(self) -> str:
        clip = "" if self.clip is None else f"rows are clipped to the norm {self.clip:.3g}"
        noise = f"channel noise of {self.sigma:.3g} is added to each row" if self.sigma else ""
        return " and ".join(filter(None, (clip, noise)))

    @property
    def additive(self) -> bool:
        return self.sigma > 0

    @property
    def draws(self) -> bool:
        return self.sigma > 0

    @cached_property
    def _streams(self) -> list[Streams]:
        return [Streams(self.seed + run, "channels") for run in range(self.runs)]

    def of_runs(self, runs: int) -> Fault:
        return replace(self, runs=runs) if self.columnwise else super().of_runs(runs)

    def arrive(self, rows: np.ndarray, at: Round, call: int) -> np.ndarray:
        if call >= MAX_CALLS:
            raise RuntimeError(
                f"more than {MAX_CALLS} calls in one step of a noisy mixer: use the operator of "
                "each step, W.at(k)"
            )
        if self.clip is not None:
            rows = clipped(rows, self.clip)
        step = (at.step * MAX_CALLS + call) * at.graphs + at.graph
        shape, where = (len(rows), width(rows) // self.runs), (at.agents, at.edges.ends, step)
        draws = np.hstack([streams.normals(*where, shape) for streams in self._streams])
        if is_complex(rows):
            draws = from_reals(draws) / np.sqrt(2)
        rows += (self.sigma * draws).astype(rows.dtype)
        return rows


def clipped(rows: np.ndarray, norm: float) -> np.ndarray:
    """Return the rows (m, d), those longer than `norm` shortened to it.

    Examples
    --------
    >>> clipped(np.array([[6.0, 8.0], [0.3, 0.4]]), 5.0).tolist()
    [[3.0, 4.0], [0.3, 0.4]]
    """
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    scale = np.divide(norm, lengths, out=np.ones_like(lengths), where=lengths > norm)
    shorter: np.ndarray = rows * scale
    return shorter


@dataclass(frozen=True, repr=False)
class Loss(Fault):
    r"""Messages that are lost; added by `Mixer.lossy`.

    With :math:`A_i` the neighbours whose message to agent i arrives in a step, :math:`Y_i = w_{ii}
    X_i + \sum_{j \in A_i} w_{ij} X_j` is completed by

    renormalize: the weights of the rows that arrived and of the agent's own, scaled by one factor
    so that they sum to what row i of W sums to;

    own: the agent's own row in place of what is lost, :math:`Y_i + \sum_{j \notin A_i} w_{ij} X_i`;

    zero: nothing.

    Over an edge of `exchange`, zeros arrive for a lost row.

    Parameters
    ----------
    messages, seed, fill
        See `Mixer.lossy`.
    n : int
        Number of agents.
    graphs : int
        Number of graphs that a row is divided among.

    Notes
    -----
    Sent per call: as without losses; `messages` and `bytes` count what is sent, lost or not.  All
    messages of an edge within one step are lost together.  The average of all agents is preserved
    by no fill, unless messages are lost in both directions of an edge and the fill is "own".
    """

    messages: float | np.ndarray | Lost
    seed: int
    fill: str
    n: int
    graphs: int = 1
    call: ClassVar[str] = "lossy"

    def __post_init__(self) -> None:
        messages, shape = self.messages, (self.graphs, self.n, self.n)
        check.choice(self.fill, "lossy: fill", FILLS)
        Streams(self.seed, "losses")  # refuses a wrong seed
        if callable(messages):
            check.takes(messages, "lossy: messages", "step", "receivers", "senders")
            return
        if np.ndim(messages) == 0:
            share = check.number(messages, "lossy: messages", least=0, most=1)
            object.__setattr__(self, "messages", share)
            return
        masks = np.asarray(messages)
        if masks.dtype != bool or masks.shape[1:] not in (shape, shape[1:] * (self.graphs == 1)):
            expected = f"(steps, {self.n}, {self.n})" if self.graphs == 1 else f"(steps, {shape})"
            raise ValueError(
                f"lossy: messages is an array of shape {masks.shape} and type {masks.dtype}, "
                "expected a probability, or "
                f"bool {expected}, by step, receiver and sender: True for a message that is lost"
            )
        object.__setattr__(self, "messages", masks.reshape(len(masks), *shape))

    def __repr__(self) -> str:
        return f"lossy({word(self.messages)}, seed={self.seed}, fill={self.fill!r})"

    def __str__(self) -> str:
        if not isinstance(self.messages, float):
            return "messages are lost"
        return f"{100 * self.messages:.3g} % of the messages are lost" if self.messages else ""

    @property
    def draws(self) -> bool:
        return isinstance(self.messages, float) and 0 < self.messages < 1

    def average(self, own: np.ndarray, at: Round) -> Average:
        return Average(own, at, self._lost(at), self.fill)

    def _lost(self, at: Round) -> np.ndarray:
        messages, (receivers, senders, _) = self.messages, at.edges.into
        if callable(messages):
            said = messages(at.step, receivers, senders)
            where, shape = f"the function of lost messages, in step {at.step},", receivers.shape
            lost: np.ndarray = check.returned(said, where, shape, "bools", single=True)
            return np.array(np.broadcast_to(lost, shape))
        if isinstance(messages, np.ndarray):
            if at.step >= len(messages):
                return np.zeros(len(receivers), bool)
            given: np.ndarray = messages[at.step, at.graph, receivers, senders]
            return given
        place = at.step * at.graphs + at.graph
        return np.asarray(uniform(self.seed, place, receivers, senders, "losses") < messages)


def checked(row: object, of: str, like: np.ndarray, number: bool = False) -> np.ndarray:
    """Return the row like `like` (or a `number`) that a function has returned; integers are
    converted, bools, texts, and complex numbers in place of real ones are refused.

    Raises
    ------
    ValueError
    """
    what = "numbers" if is_complex(like) else "real numbers"
    made: np.ndarray = check.returned(row, of, like.shape, what, single=number)
    return made
