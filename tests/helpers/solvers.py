"""Solvers with a graph each: exact ones and biased ones."""

import numpy as np

from mpidec import solvers as S, topology as T


def digraph(n, seed=3):
    """A pair of random weights on a random strongly connected digraph, with unequal degrees."""
    rng = np.random.default_rng([seed, n])
    A = (
        (rng.random((n, n)) < 0.3)
        | np.eye(n, dtype=bool)
        | np.roll(np.eye(n, dtype=bool), 1, axis=0)
    )
    R, C = (A * rng.uniform(0.5, 2, (n, n)) for _ in range(2))
    return T.push_pull(
        T.from_weights(R / R.sum(axis=1, keepdims=True)), T.from_weights(C / C.sum(axis=0))
    )


def push_pull_star(n):
    return T.star(n, weights="push-pull")


EXACT = [
    (S.EXTRA(0.2), T.ring),
    (S.EXTRA(0.2), T.erdos_renyi),
    (S.ExactDiffusion(0.3), T.ring),
    (S.ExactDiffusion(0.3), T.grid),
    (S.ExactDiffusion(0.2), T.exponential),
    (S.D2(0.3), T.star),
    (S.GradientTracking(0.1), T.ring),
    (S.GradientTracking(0.1), T.one_peer_exponential),
    (S.GradientTracking(0.1, variant="semi-atc"), T.exponential),
    (S.GradientTracking(0.1, variant="diging"), T.ring),
    (S.PushDIGing(0.05), T.exponential),
    (S.PushDIGing(0.05), lambda n: T.star(n, weights="push")),
    (S.PushPull(0.1), push_pull_star),
    (S.PushPull(0.1), digraph),
    (S.PushPull(0.05, variant="ab"), digraph),
    (S.RelaySGD(0.2), T.chain),
    (S.RelaySGD(0.2, missing="count"), T.binary_tree),
    (S.RelaySGD(0.2, missing="own"), T.star),
    (S.RelaySGD(0.2, missing="current"), T.chain),
    (S.KGT(0.05, local_steps=3), T.one_peer_exponential),
    (S.LED(0.2, 3), T.ring),
    (S.NIDS(0.3), T.ring),
    (S.PGEXTRA(0.2), T.erdos_renyi),
    (S.ProximalGradientTracking(0.1), T.one_peer_exponential),
]


BIASED = [
    (S.DGD(0.1, order="atc"), T.ring),
    (S.DGD(0.1, order="cta"), T.ring),
    (S.DGD(0.1, order="awc"), T.ring),
    (S.Diffusion(0.1), T.exponential),
    (S.PushSum(0.05), T.exponential),
    (S.OSGP(0.05), T.exponential),
    (S.DSGDCECA(0.05), T.ceca),
    (S.RelaySGD(0.05, relay="gradient"), T.chain),
    (S.DecentralizedMomentum(0.005), T.exponential),
    (S.QuasiGlobalMomentum(0.01), T.ring),
    (S.QuasiGlobalMomentum(0.1, nesterov=False, normalized=True), T.ring),
    (S.DecentLaM(0.02), T.ring),
    (S.LocalDGD(0.05, local_steps=3), T.one_peer_exponential),
    (S.SlowMo(0.02, local_steps=3), T.complete),
    (S.SlowMo(0.02, local_steps=3, gossip=True), T.ring),
    (S.DiLoCo(0.02, local_steps=3), T.ring),
    (S.GASLoC(0.01, local_steps=2), T.ring),
]


ALL = list(
    {
        repr(solver): (solver, graph)
        for solver, graph in [(S.Consensus(), T.ring), *EXACT, *BIASED]
    }.values()
)


def label(case):
    return (
        repr(case) if isinstance(case, S.Solver) else getattr(case, "__name__", "graph").strip("<>")
    )
