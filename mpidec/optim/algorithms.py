"""Algorithms by name: the method, its equations, and the topology it has by default."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .. import solvers, topology
from .._validation import choice, integer, number
from ..comm.mixing import Network, codecs
from ..comm.mixing.internals import Codec
from ..plugins import canonical, nearest
from ..solvers import LocalDGD, Solver
from ..solvers.internals import Asynchronous, PairwiseSolver
from ..topology import Schedule, Topology
from .asynchronous import MOST, PairwiseMethod, PushSumMethod
from .methods import (
    AdaptiveAverage,
    AdaptThenCombine,
    AdaptWhileCombine,
    AllReduce,
    ByRate,
    Hierarchical,
    Method,
    Mixer,
    MomentumUpdate,
    OverlapPush,
    SolverUpdate,
    StreamingUpdate,
)
from .muon import DeMuon
from .rows import Bucket

Graph = Topology | Schedule


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of decentralized training.

    Parameters
    ----------
    name : str
    text : str
        One line.
    method : class of methods
        Says what the algorithm does, and when.
    graph : str
        Name of the default topology.
    every : int
        Steps of the base optimizer per mixing, by default.
    options : dict
        Further arguments of `method`.
    graphs : callable (list of topologies) -> list of topologies, optional
        The topologies of its mixers, made of the given ones.
    mixing : callable, optional
        Makes another mixer of each, such as a compressed one.
    check : callable (topology), optional
        Raises if a topology does not serve.
    machine_size : int
        Workers for each agent of the given topology.
    """

    name: str
    text: str
    method: type[Method]
    graph: str = "one_peer_exponential"
    every: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    graphs: Callable[[list[Graph]], list[Graph]] | None = None
    mixing: Callable[[Mixer], Mixer] | None = None
    check: Callable[[Graph], None] | None = None
    machine_size: int = 1

    def make(
        self, net: Network, buckets: list[Bucket], mixers: Sequence[Mixer], every: int
    ) -> Method:
        """Return the method, for the rows of a model and the steps per mixing."""
        period = {"every": every} if self.method.scheduled else {}
        return self.method(net, buckets, mixers, **self.options, **period)


def _doubly(name: str, graph: Graph) -> None:
    if graph.kind != "doubly":
        raise ValueError(
            f"{name} needs a doubly stochastic W, the {graph.name} topology is {graph.kind} "
            'stochastic: use weights="metropolis" on an undirected graph, or algorithm="push_sum"'
        )


def _combine(
    name: str, text: str, method: type[Method] = AdaptThenCombine, **more: Any
) -> Algorithm:
    return Algorithm(name, text, method, check=partial(_doubly, name), **more)


def _equations(
    name: str,
    text: str,
    solver: Solver | type[object],
    method: type[SolverUpdate] = SolverUpdate,
    graph: str = "",
    every: int = 1,
) -> Algorithm:
    if isinstance(solver, type) or solver.step_size not in (1, "auto"):
        raise ValueError(
            f"algorithm is {solver!r}, expected a solver with the step size 1, such as D2(1.0): "
            "the optimizer has the learning rate"
        )
    if isinstance(solver, Asynchronous) or solver.needs.functions != ("grad",):
        raise ValueError(
            f"{type(solver).__name__} does not take synchronous gradient steps: it cannot train "
            "a model"
        )
    graph, options = graph or solver.needs.graph, {"solver": solver}
    return Algorithm(name, text, method, graph, every, options, check=solver.check)


def _check_options(
    name: str, options: Mapping[str, Any], solver: type[Solver], without: str = "", more: str = ""
) -> None:
    """Refuse options that an algorithm with those of a solver does not have."""
    own = [each for each in inspect.signature(solver).parameters if each != without][1:]
    if unknown := [option for option in options if option not in own]:
        raise ValueError(
            f"algorithm {name!r}: unexpected keyword argument {unknown[0]!r}; its own options: "
            f"{', '.join([*own, *filter(None, [more])]) or 'none'}"
        )


def _solver(
    text: str,
    solver: type[Solver],
    method: type[SolverUpdate] = SolverUpdate,
    graph: str = "",
    **defaults: Any,
) -> Callable[..., Algorithm]:
    """Return the algorithm of a solver, with the solver's options; its local steps are those of the
    base optimizer.
    """

    def make(name: str, **options: Any) -> Algorithm:
        _check_options(name, options, solver)
        given: dict[str, Any] = {**defaults, **options}
        every = solver(1.0, **given).period
        if every > 1:
            given["local_steps"] = 1
        return _equations(name, text, solver(1.0, **given), method, graph, every)

    return make


def _pairwise(text: str, solver: type[PairwiseSolver]) -> Callable[..., Algorithm]:
    """Return the algorithm of a pairwise solver, with the solver's options but the momentum."""

    def make(name: str, seed: int = 0, **options: Any) -> Algorithm:
        _check_options(name, options, solver, "momentum", "seed")
        integer(seed, "seed", least=0)
        of = solver(1.0, momentum=0.0, **options)
        if not isinstance(of.rate, (int, float)) or of.rate > MOST:
            raise ValueError(
                f"algorithm {name!r}: rate is {of.rate!r}, expected a number up to {MOST:g}: "
                "neighbours begin at most one averaging with a worker in a step of its"
            )
        if options.get("order") == "code":
            raise ValueError(
                f'algorithm {name!r}: order="code" does not preserve the average of the workers, '
                'expected "sde" or "algorithm"'
            )
        given = {"solver": of, "seed": seed}
        return Algorithm(name, text, PairwiseMethod, "ring", options=given, check=of.check)

    return make


def _pga(name: str, period: int = 8, adaptive: bool = False, warmup: int = 100) -> Algorithm:
    """Gossip, with the average over all agents every `period` steps; `adaptive`: less often as
    the loss falls.
    """
    text = (
        "adapt, then combine; every 8th time with all agents (gossip-PGA; with adaptive=True "
        "gossip-AGA)"
    )
    for what, value, least in ("period", period, 1), ("warmup", warmup, 0):
        if not isinstance(value, int) or value < least:
            raise ValueError(
                f"algorithm {name!r}: {what} is {value!r}, expected a whole number >= {least}"
            )
    if adaptive:
        return _combine(
            name,
            text,
            AdaptiveAverage,
            options={"period": period, "warmup": warmup},
            graphs=lambda given: [*given, topology.complete(given[0].n)],
        )
    return _combine(
        name,
        text,
        graphs=lambda given: [topology.periodic_average(graph, period) for graph in given],
    )


def _choco(
    name: str, codec: str | Codec = "blockwise8", gamma: float | None = None, **options: Any
) -> Algorithm:
    if codec == "top_k" and not options:
        options = {"fraction": 0.1}
    return _combine(
        name,
        "adapt, then combine, with compressed rows and error feedback (CHOCO-SGD)",
        graph="ring",
        mixing=lambda W: W.compress(codec, feedback=True, gamma=gamma, **options),
    )


def _streaming(
    name: str,
    local_steps: int = 50,
    fragments: int = 4,
    delay: int = 5,
    blend: float = 0.5,
    outer_step: float = 0.7,
    momentum: float | None = None,
    outer: str = "diloco",
    codec: str | Codec | None = None,
    gamma: float | None = None,
    **options: Any,
) -> Algorithm:
    what = f"algorithm {name!r}"
    if codec is None and (gamma is not None or options):
        raise ValueError(f"{what}: {[*options, 'gamma'][0]} has no effect without codec=")
    if momentum is not None:
        number(momentum, f"{what}: momentum", least=0, below=1)
    parts = integer(fragments, f"{what}: fragments", least=1)
    method = {
        "delay": integer(delay, f"{what}: delay", least=0),
        "blend": number(blend, f"{what}: blend", above=0, most=1),
        "outer_step": number(outer_step, f"{what}: outer_step", above=0),
        "momentum": momentum,
        "outer": choice(outer, f"{what}: outer", ("diloco", "noloco")),
    }

    def graphs(given: list[Graph]) -> list[Graph]:
        if len(given) > 1:
            raise ValueError(
                f"{what} mixes each fragment over one topology, got {len(given)}: pass one"
            )
        return given * parts

    def compressed(W: Mixer) -> Mixer:
        if codec is None:
            return W
        made = codecs.codec(codec, **options)
        # Rounding to nearest is stable with full steps to the neighbours.
        full = gamma is None and not (made.unbiased or made.feedback)
        return W.compress(made, gamma=1.0 if full else gamma)

    return _combine(
        name,
        "local steps, then a Nesterov step of one fragment after the other, which travels during "
        "further local steps (streaming DiLoCo, over any graph)",
        StreamingUpdate,
        every=integer(local_steps, f"{what}: local_steps", least=1),
        options=method,
        graphs=graphs,
        mixing=compressed,
    )


def _hierarchical(name: str, machine_size: int = 2) -> Algorithm:
    """Average within machines of `machine_size` agents, then combine between machines, agent by
    agent.
    """

    def graphs(given: list[Graph]) -> list[Graph]:
        import numpy as np
        import scipy.sparse as sparse

        graph = given[0]
        if len(given) > 1 or graph.period != 1:
            raise ValueError(
                "hierarchical needs one graph between the machines, of which it makes that of the "
                f"workers, got {'a schedule' if len(given) == 1 else f'{len(given)} topologies'}"
            )
        W, inner = graph.at(0).W, np.full((machine_size, machine_size), 1 / machine_size)
        within = sparse.kron(sparse.eye_array(graph.n), inner, format="csr")
        between = sparse.kron(W, sparse.eye_array(machine_size), format="csr")
        return [
            topology.from_weights(within, connected=False),
            topology.from_weights(between, connected=False),
        ]

    return _combine(
        name,
        "average within machines, then combine between machines",
        Hierarchical,
        graph="ring",
        graphs=graphs,
        machine_size=machine_size,
    )


_MADE: dict[str, Callable[..., Algorithm]] = {
    "atc": lambda name: _combine(name, "adapt, then combine: x+ = W (x + u)"),
    "awc": lambda name: _combine(
        name,
        "adapt while combining: x+ = W x + u; the rows travel during the gradients",
        AdaptWhileCombine,
    ),
    "allreduce": lambda name: Algorithm(
        name, "the average of all gradients in each step", AllReduce
    ),
    "local": lambda name, local_steps=LocalDGD.local_steps: _combine(
        name,
        f"local steps, and a mixing every {LocalDGD.local_steps}th step (local SGD)",
        every=integer(local_steps, "algorithm 'local': local_steps"),
    ),
    "pga": _pga,
    "choco": _choco,
    "hierarchical": _hierarchical,
    "async_push_sum": lambda name: Algorithm(
        name,
        "push-sum over windows: no worker waits for another one",
        PushSumMethod,
        graph="exponential",
    ),
    "pairwise": _pairwise("asynchronous gossip of pairs (AD-PSGD)", solvers.PairwiseGossip),
    "a2cid2": _pairwise(
        "A2CiD2: asynchronous gossip of pairs with a continuous momentum", solvers.A2CiD2
    ),
    "d2": _solver("D2: no bias from heterogeneous data", solvers.D2, graph="chain"),
    "exact_diffusion": _solver("exact diffusion: D2 with (I + W) / 2", solvers.ExactDiffusion),
    "gradient_tracking": _solver(
        "tracks the average of all updates", solvers.GradientTracking, variant="semi-atc"
    ),
    "push_sum": _solver(
        "stochastic gradient push, for directed graphs",
        solvers.PushSum,
        graph="one_peer_exponential",
    ),
    "osgp": lambda name: Algorithm(
        name,
        "overlapped push-sum: what is sent travels during the next gradients",
        OverlapPush,
        check=solvers.PushSum(1.0).check,
    ),
    "relay": _solver(
        "RelaySGD: exact sums, relayed over a tree, or over several", solvers.RelaySGD
    ),
    "ceca": _solver("DSGD-CECA: exact averages after log2(n) steps", solvers.DSGDCECA),
    "qg": _solver(
        "quasi-global momentum", solvers.QuasiGlobalMomentum, MomentumUpdate, graph="ring"
    ),
    "mixed_momentum": _solver(
        "momentum SGD whose momentum is mixed with the neighbours, too (DmSGD)",
        solvers.DecentralizedMomentum,
        MomentumUpdate,
        mix_momentum=True,
    ),
    "decentlam": _solver(
        "momentum without the bias of local momentum", solvers.DecentLaM, MomentumUpdate
    ),
    "slowmo": _solver(
        "local steps, then a step of slow momentum along their average",
        solvers.SlowMo,
        ByRate,
        graph="complete",
    ),
    "diloco": _solver(
        "local steps, then a Nesterov step along their average; with a sparse graph a variant of "
        "it",
        solvers.DiLoCo,
        graph="complete",
    ),
    "gasloc": _solver(
        "local steps, then a mixing with momentum: DiLoCo over sparse graphs",
        solvers.GASLoC,
        momentum=0.5,
    ),
    "noloco": _solver(
        "local steps, then a step with momentum along the average with one random partner",
        solvers.NoLoCo,
    ),
    "streaming_diloco": _streaming,
    "demuon": lambda name, momentum=0.8, iterations=5, vectors="update": _combine(
        name,
        "tracks the average momentum of matrices and steps along its matrix sign (DeMuon)",
        DeMuon,
        options={"momentum": momentum, "iterations": iterations, "vectors": vectors},
    ),
}


def names() -> dict[str, str]:
    """Return the algorithms, with a line each.

    Examples
    --------
    >>> names()["atc"]
    'adapt, then combine: x+ = W (x + u)'
    """
    return {name: make(name).text for name, make in _MADE.items()}


def algorithm(of: object, **options: Any) -> Algorithm:
    """Return an algorithm by its name, or with the equations of a solver.

    Raises
    ------
    ValueError
        For an unknown name or option.

    Examples
    --------
    >>> algorithm("pga", period=4).name
    'pga'
    >>> import mpidec
    >>> algorithm(mpidec.solvers.ExactDiffusion(1.0)).graph
    'symmetric_exponential'
    """
    if isinstance(of, Solver) or inspect.isclass(of):
        return _equations(type(of).__name__, "", of)
    if not isinstance(of, str):
        raise ValueError(f"algorithm is {of!r}, expected a solver or one of {', '.join(_MADE)}")
    key = canonical(of, list(_MADE))
    if key is None:
        raise ValueError(f"algorithm is {of!r}: {nearest(of, _MADE)}")
    try:
        return _MADE[key](key, **options)
    except TypeError as error:
        _, *own = inspect.signature(_MADE[key]).parameters.values()
        known = [each.name for each in own if each.kind != each.VAR_KEYWORD]
        what = str(error).partition("() got an ")[2] or str(error)
        more = f"; its own options: {', '.join(known) or 'none'}" if known or not own else ""
        raise ValueError(f"algorithm {key!r}: {what}{more}") from None
