"""Algorithms by name: the method, its equations, and the topology it has by default."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .. import solvers, topology
from .._validation import integer
from ..comm.mixing import Network
from ..comm.mixing.codecs.base import Codec
from ..plugins import canonical, nearest
from ..solvers import A2CiD2, DiLoCo, GASLoC, NoLoCo, SlowMo
from ..solvers.asynchronous import Asynchronous, PairwiseSolver
from ..solvers.base import Solver
from ..topology import Schedule, Topology
from .asynchronous import MOST, PairwiseMethod, PushSum
from .methods import (
    AdaptiveAverage,
    AdaptThenCombine,
    AdaptWhileCombine,
    AllReduce,
    Hierarchical,
    Made,
    Method,
    Mixer,
    OverlapPush,
    SolverUpdate,
)
from .muon import DeMuon

Graph = Topology | Schedule


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of decentralized training.

    Parameters
    ----------
    name : str
    text : str
        One line.
    make : callable (net, buckets, mixers) -> Method
    graph : str
        Name of the default topology.
    every : int
        Steps of the base optimizer per mixing, by default.
    graphs : callable (list of topologies) -> list of topologies, optional
        The topologies of its mixers, made of the given ones.
    mixing : callable, optional
        Makes another mixer of each, such as a compressed one.
    check : callable (topology), optional
        Raises if a topology does not serve.
    of_gradients : bool
        Whether it does something before the update.
    overlaps : bool
        Whether rows travel while the gradients are computed.
    each_step : bool
        Whether it communicates in every step.
    by_rate : bool
        Whether it uses the learning rate.
    edgewise : bool
        Whether rows travel otherwise than in sums of the mixer.
    machine_size : int
        Workers for each agent of the given topology.
    own_momentum : bool
        Whether it takes the place of the optimizer's momentum.
    asynchronous : bool
        Whether no worker waits for another one.
    """

    name: str
    text: str
    make: Made
    graph: str = "one_peer_exponential"
    every: int = 1
    graphs: Callable[[list[Graph]], list[Graph]] | None = None
    mixing: Callable[[Any], Any] | None = None
    check: Callable[[Any], None] | None = None
    of_gradients: bool = False
    overlaps: bool = False
    each_step: bool = False
    by_rate: bool = False
    edgewise: bool = False
    machine_size: int = 1
    own_momentum: bool = False
    asynchronous: bool = False


def _doubly(name: str, graph: Graph) -> None:
    if graph.kind != "doubly":
        raise ValueError(
            f"{name} needs a doubly stochastic W, the {graph.name} topology is {graph.kind} "
            "stochastic: use "
            'weights="metropolis" on an undirected graph, or algorithm="push_sum"'
        )


def _combine(name: str, text: str, method: Made = AdaptThenCombine, **more: Any) -> Algorithm:
    return Algorithm(name, text, method, check=partial(_doubly, name), **more)


def _equations(
    name: str,
    text: str,
    solver: Solver,
    by_rate: bool = False,
    graph: str = "",
    every: int = 1,
    own_momentum: bool = False,
) -> Algorithm:
    def make(net: Network, buckets: list[Any], mixers: Sequence[Mixer]) -> Method:
        return SolverUpdate(net, buckets, mixers, solver, by_rate)

    if isinstance(solver, type) or solver.step_size not in (1, "auto"):
        raise ValueError(
            f"algorithm is {solver!r}, expected a solver with the step size 1, such as D2(1.0): "
            "the optimizer has the "
            "learning rate"
        )
    if isinstance(solver, Asynchronous) or solver.needs.functions != ("grad",):
        raise ValueError(
            f"{type(solver).__name__} does not work on gradients in common steps: it cannot train "
            "a model"
        )
    return Algorithm(
        name,
        text,
        make,
        graph=graph or solver.needs.graph,
        every=every,
        check=solver.check,
        by_rate=by_rate,
        edgewise=solver.needs.exchange,
        own_momentum=own_momentum,
    )


def _pairwise(name: str, text: str, solver: PairwiseSolver, seed: int) -> Algorithm:
    integer(seed, "seed", least=0)
    if not isinstance(solver.rate, (int, float)) or solver.rate > MOST:
        raise ValueError(
            f"algorithm {name!r}: rate is {solver.rate!r}, expected a number up to {MOST:g}: "
            "neighbours begin at most "
            "one averaging with a worker in a step of its"
        )
    if getattr(solver, "order", "sde") == "code":
        raise ValueError(
            f'algorithm {name!r}: order="code" does not preserve the average of the workers, '
            'expected "sde" or '
            '"algorithm"'
        )

    def make(net: Network, buckets: list[Any], mixers: Sequence[Mixer]) -> Method:
        return PairwiseMethod(net, buckets, mixers, solver, seed)

    return Algorithm(
        name, text, make, graph="ring", check=solver.check, edgewise=True, asynchronous=True
    )


def _pga(period: int = 8, adaptive: bool = False, warmup: int = 100) -> Algorithm:
    """Gossip, and the average over all agents every `period` steps; or, adaptive, ever more
    rarely as the loss falls.
    """
    text = "adapt, then combine; every 8th time with all agents (gossip-PGA; with adaptive=True gossip-AGA)"
    for name, value, least in ("period", period, 1), ("warmup", warmup, 0):
        if not isinstance(value, int) or value < least:
            raise ValueError(
                f"algorithm 'pga': {name} is {value!r}, expected a whole number >= {least}"
            )
    if adaptive:

        def make(net: Network, buckets: list[Any], mixers: Sequence[Mixer]) -> Method:
            return AdaptiveAverage(net, buckets, mixers, period, warmup)

        return _combine(
            "pga", text, make, graphs=lambda given: [*given, topology.complete(given[0].n)]
        )
    return _combine(
        "pga",
        text,
        graphs=lambda given: [topology.periodic_average(graph, period) for graph in given],
    )


def _choco(
    codec: str | Codec = "blockwise8", gamma: float | None = None, **options: Any
) -> Algorithm:
    if codec == "top_k" and not options:
        options = {"fraction": 0.1}
    return _combine(
        "choco",
        "adapt, then combine, with compressed rows and error feedback (CHOCO-SGD)",
        graph="ring",
        mixing=lambda W: W.compress(codec, feedback=True, gamma=gamma, **options),
    )


def _hierarchical(machine_size: int = 2) -> Algorithm:
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
                "workers, got "
                f"{'a schedule' if len(given) == 1 else f'{len(given)} topologies'}"
            )
        W, inner = graph.at(0).W, np.full((machine_size, machine_size), 1 / machine_size)
        within = sparse.kron(sparse.eye_array(graph.n), inner, format="csr")
        between = sparse.kron(W, sparse.eye_array(machine_size), format="csr")
        return [
            topology.from_weights(within, connected=False),
            topology.from_weights(between, connected=False),
        ]

    return _combine(
        "hierarchical",
        "average within machines, then combine between machines",
        Hierarchical,
        graph="ring",
        graphs=graphs,
        machine_size=machine_size,
    )


def _slowmo(
    momentum: float = SlowMo.momentum, local_steps: int = SlowMo.local_steps, **options: Any
) -> Algorithm:
    text = "local steps, then a step of slow momentum along their average"
    solver = SlowMo(1.0, momentum=momentum, local_steps=1, **options)
    every = integer(local_steps, "algorithm 'slowmo': local_steps")
    return _equations("slowmo", text, solver, by_rate=True, graph="complete", every=every)


def _diloco(
    outer_step: float = DiLoCo.outer_step,
    momentum: float = DiLoCo.momentum,
    local_steps: int = DiLoCo.local_steps,
) -> Algorithm:
    text = (
        "local steps, then a Nesterov step along their average; with a sparse graph a variant of it"
    )
    solver = DiLoCo(1.0, outer_step, momentum, local_steps=1)
    every = integer(local_steps, "algorithm 'diloco': local_steps")
    return _equations("diloco", text, solver, graph="complete", every=every)


def _gasloc(
    outer_step: float = GASLoC.outer_step,
    momentum: float = 0.5,
    local_steps: int = GASLoC.local_steps,
) -> Algorithm:
    text = "local steps, then a mixing with momentum: DiLoCo over sparse graphs"
    solver = GASLoC(1.0, outer_step, momentum, local_steps=1)
    return _equations(
        "gasloc", text, solver, every=integer(local_steps, "algorithm 'gasloc': local_steps")
    )


def _noloco(
    outer_step: float = NoLoCo.outer_step,
    momentum: float = NoLoCo.momentum,
    local_steps: int = NoLoCo.local_steps,
    consensus_step: float | None = NoLoCo.consensus_step,
) -> Algorithm:
    text = "local steps, then a step with momentum along the average with one random partner"
    solver = NoLoCo(1.0, outer_step, momentum, 1, consensus_step)
    return _equations(
        "noloco", text, solver, every=integer(local_steps, "algorithm 'noloco': local_steps")
    )


def _demuon(momentum: float = 0.8, iterations: int = 5, vectors: str = "update") -> Algorithm:
    def make(net: Network, buckets: list[Any], mixers: Sequence[Mixer]) -> Method:
        return DeMuon(net, buckets, mixers, momentum, iterations, vectors)

    return _combine(
        "demuon",
        "tracks the average momentum of matrices and steps along its matrix sign (DeMuon)",
        make,
        of_gradients=True,
        each_step=True,
        by_rate=True,
    )


def _a2cid2(
    rate: float = A2CiD2.rate,
    seed: int = 0,
    eta: float | None = A2CiD2.eta,
    alpha: float = A2CiD2.alpha,
    alpha_tilde: float | None = A2CiD2.alpha_tilde,
    order: str = A2CiD2.order,
) -> Algorithm:
    text = "A2CiD2: asynchronous gossip of pairs with a continuous momentum"
    solver = A2CiD2(1.0, eta, alpha, alpha_tilde, rate=rate, order=order)
    return _pairwise("a2cid2", text, solver, seed)


_MADE: dict[str, Callable[..., Algorithm]] = {
    "atc": lambda: _combine("atc", "adapt, then combine: x+ = W (x + u)"),
    "awc": lambda: _combine(
        "awc",
        "adapt while combining: x+ = W x + u; the rows travel during the gradients",
        AdaptWhileCombine,
        each_step=True,
        of_gradients=True,
        overlaps=True,
    ),
    "allreduce": lambda: Algorithm(
        "allreduce",
        "the average of all gradients in each step",
        AllReduce,
        of_gradients=True,
        each_step=True,
    ),
    "local": lambda local_steps=solvers.LocalDGD.local_steps: _combine(
        "local",
        f"local steps, and a mixing every {solvers.LocalDGD.local_steps}th step (local SGD)",
        every=integer(local_steps, "algorithm 'local': local_steps"),
    ),
    "pga": _pga,
    "choco": _choco,
    "hierarchical": _hierarchical,
    "async_push_sum": lambda: Algorithm(
        "async_push_sum",
        "push-sum over windows: no worker waits for another one",
        PushSum,
        graph="exponential",
        edgewise=True,
        asynchronous=True,
    ),
    "pairwise": lambda rate=solvers.PairwiseGossip.rate, seed=0: _pairwise(
        "pairwise",
        "asynchronous gossip of pairs (AD-PSGD)",
        solvers.PairwiseGossip(1.0, rate=rate),
        seed,
    ),
    "a2cid2": _a2cid2,
    "d2": lambda: _equations(
        "d2", "D2: no bias from heterogeneous data", solvers.D2(1.0), graph="chain"
    ),
    "exact_diffusion": lambda: _equations(
        "exact_diffusion", "exact diffusion: D2 with (I + W) / 2", solvers.ExactDiffusion(1.0)
    ),
    "gradient_tracking": lambda variant="semi-atc": _equations(
        "gradient_tracking",
        "tracks the average of all updates",
        solvers.GradientTracking(1.0, variant=variant),
    ),
    "push_sum": lambda: _equations(
        "push_sum",
        "stochastic gradient push, for directed graphs",
        solvers.PushSum(1.0),
        graph="one_peer_exponential",
    ),
    "osgp": lambda: Algorithm(
        "osgp",
        "overlapped push-sum: what is sent travels during the next gradients",
        OverlapPush,
        check=solvers.PushSum(1.0).check,
        overlaps=True,
    ),
    "relay": lambda **options: _equations(
        "relay",
        "RelaySGD: exact sums, relayed over a tree, or over several",
        solvers.RelaySGD(1.0, **options),
    ),
    "ceca": lambda: _equations(
        "ceca", "DSGD-CECA: exact averages after log2(n) steps", solvers.DSGDCECA(1.0)
    ),
    "qg": lambda momentum=solvers.QuasiGlobalMomentum.momentum, **options: _equations(
        "qg",
        "quasi-global momentum",
        solvers.QuasiGlobalMomentum(1.0, momentum, **options),
        by_rate=True,
        graph="ring",
        own_momentum=True,
    ),
    "decentlam": lambda momentum=solvers.DecentLaM.momentum: _equations(
        "decentlam",
        "momentum without the bias of local momentum",
        solvers.DecentLaM(1.0, momentum),
        by_rate=True,
        own_momentum=True,
    ),
    "slowmo": _slowmo,
    "diloco": _diloco,
    "gasloc": _gasloc,
    "noloco": _noloco,
    "demuon": _demuon,
}


def names() -> dict[str, str]:
    """The algorithms, with a line each.

    Examples
    --------
    >>> names()["atc"]
    'adapt, then combine: x+ = W (x + u)'
    """
    return {name: make().text for name, make in _MADE.items()}


def algorithm(of: Any, **options: Any) -> Algorithm:
    """An algorithm by its name, or with the equations of a solver.

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
    if not isinstance(of, str):
        if not (hasattr(of, "step") and hasattr(of, "init")):
            raise ValueError(f"algorithm is {of!r}, expected a solver or one of {', '.join(_MADE)}")
        return _equations(type(of).__name__, "", of)
    key = canonical(of, list(_MADE))
    if key is None:
        raise ValueError(f"algorithm is {of!r}: {nearest(of, _MADE)}")
    of = key
    try:
        return _MADE[of](**options)
    except TypeError as error:
        known = [
            name
            for name, parameter in inspect.signature(_MADE[of]).parameters.items()
            if parameter.kind != parameter.VAR_KEYWORD
        ]
        what = str(error).partition("() got an ")[2] or str(error)
        raise ValueError(
            f"algorithm {of!r}: {what}; its own options: {', '.join(known) or 'none'}"
        ) from None
