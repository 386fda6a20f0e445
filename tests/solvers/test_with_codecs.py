"""Solvers over compressed and accelerated mixers: what they reach, and what they refuse."""

import numpy as np
import pytest

import mpidec
from mpidec import solvers as S, topology as T
from mpidec.comm.mixing.codecs import CODECS
from mpidec.experiment.command import main

pytestmark = pytest.mark.serial

N, D, P = 8, 8, 10
EXACT = [
    S.EXTRA(0.2),
    S.ExactDiffusion(0.3),
    S.D2(0.3),
    S.GradientTracking(0.1),
    S.GradientTracking(0.1, "semi-atc"),
    S.GradientTracking(0.1, "diging"),
    S.PushDIGing(0.05),
    S.KGT(0.05, local_steps=2),
    S.LED(0.1, 2),
]
NEAR = [
    S.DGD(0.02),
    S.DGD(0.02, "cta"),
    S.DGD(0.02, "awc"),
    S.Diffusion(0.02),
    S.PushSum(0.02),
    S.OSGP(0.02),
    S.DecentralizedMomentum(0.002),
    S.QuasiGlobalMomentum(0.005),
    S.DecentLaM(0.005),
    S.LocalDGD(0.02, 2),
    S.SlowMo(0.02),
    S.DiLoCo(0.01),
    S.GASLoC(0.01),
]
QUICK = [S.EXTRA(0.2), S.GradientTracking(0.1)]
ERROR = {
    "identity": 1e-9,
    "float16": 5e-3,
    "bfloat16": 1e-2,
    "blockwise8": 2e-2,
    "qsgd": 0.3,
}  # without feedback
SPARSE = {"top_k": {"fraction": 0.5}, "rand_k": {"fraction": 0.5}}


def distance(solver, mixing, graph=T.ring, steps=1200):
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((N, P, D)) / np.sqrt(P), rng.standard_normal((N, P))
    x = np.linalg.lstsq(A.reshape(-1, D), b.reshape(-1), rcond=None)[0]
    with mpidec.Network(N) as net:
        problem = mpidec.problems.LeastSquares(A, b)
        result = mpidec.solve(
            problem, solver, graph(N), steps=steps, net=net, every=10**9, mixing=mixing
        )
    assert result.outcome == "completed"
    return abs(result.X - x).max()


def cases(solvers):
    chosen = [(solver, name) for solver in solvers for name in CODECS]
    return [
        case for case in chosen if not (isinstance(case[0], S.D2) and case[1] == "rand_k")
    ]  # diverges, as documented


@pytest.mark.parametrize(
    "solver, name",
    [(solver, name) for solver in QUICK for name in ("blockwise8", "top_k")],
    ids=str,
)
def test_feedback_makes_exact_methods_exact(solver, name):
    assert (
        distance(solver, lambda W: W.compress(name, feedback=True, **SPARSE.get(name, {}))) < 1e-6
    )


@pytest.mark.parametrize("name", [name for name in CODECS if name not in SPARSE])
def test_every_lossy_codec_has_feedback_by_default(name):
    """On a static graph, over which an exact method is then exact; a schedule, and messages to single neighbours, have none."""
    with mpidec.Network(N) as net:
        W = net.mixer(T.ring(N)).compress(name)
        assert W.feedback == (name != "identity")
        assert not net.mixer(T.one_peer_exponential(N)).compress(name).feedback
        tree = net.mixer(T.binary_tree(N)).compress(name).at(0)
        assert tree.exchange(tree.to_edges(np.ones((N, 2)))).shape == (2 * (N - 1), 2)
        W = net.mixer(T.binary_tree(N)).compress(name, feedback=True)
        with pytest.raises(ValueError, match="each neighbour is sent without error feedback"):
            W.at(0).exchange(np.ones((2 * (N - 1), 2)))
    assert distance(S.GradientTracking(0.1), lambda W: W.compress(name), steps=800) < 1e-6


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("solver, name", cases(EXACT), ids=str)
def test_every_exact_method_with_every_codec(solver, name):
    assert (
        distance(solver, lambda W: W.compress(name, feedback=True, **SPARSE.get(name, {}))) < 1e-6
    )
    if name not in SPARSE:
        assert distance(solver, lambda W: W.compress(name, feedback=False)) < ERROR[name]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("solver, name", cases(NEAR), ids=str)
def test_the_other_methods_come_as_near_as_they_do(solver, name):
    plain = distance(solver, None)
    assert distance(
        solver, lambda W: W.compress(name, **SPARSE.get(name, {}))
    ) < 3 * plain + ERROR.get(name, 0)


@pytest.mark.parametrize("method", ["chebyshev", "fastmix"])
@pytest.mark.parametrize("solver", [S.EXTRA(0.2), S.GradientTracking(0.1)], ids=str)
def test_accelerated_methods_are_exact(solver, method):
    assert distance(solver, lambda W: W.accelerate(4, method), steps=400) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("solver", EXACT + NEAR, ids=str)
def test_acceleration_goes_with_every_method(solver):
    bound = 1e-9 if solver in EXACT else distance(solver, None)
    assert distance(solver, lambda W: W.accelerate(4)) <= bound
    assert distance(solver, lambda W: W.accelerate(4, "fastmix")) <= bound
    assert (
        distance(solver, lambda W: W.compress("blockwise8", feedback=True).accelerate(3))
        <= max(bound, 1e-6) * 1.01
    )


@pytest.mark.parametrize(
    "solver, graph",
    [(S.RelaySGD(0.2), T.chain), (S.DSGDCECA(0.01), T.ceca)],
    ids=["relaysgd", "ceca"],
)
def test_rows_for_single_neighbours(solver, graph):
    plain = distance(solver, None, graph, 600)
    assert distance(solver, lambda W: W.compress("float16"), graph, 600) < plain + 0.05
    if graph is T.chain:
        for mixing in (lambda W: W.compress("top_k"), lambda W: W.accelerate(2)):
            with pytest.raises(ValueError, match="neighbour"):
                distance(solver, mixing, graph, 2)


def test_a_refusal_names_the_reason():
    with pytest.raises(ValueError, match="error feedback needs the same neighbours"):
        distance(S.DGD(0.1), lambda W: W.compress("top_k"), T.one_peer_exponential, 2)


@pytest.mark.parametrize(
    "settings, words",
    [
        (["mixing.codec=blockwise8", "mixing.feedback=true"], "blockwise8"),
        (["mixing.accelerate=2", "mixing.method=chebyshev"], "2 times, chebyshev"),
    ],
)
def test_the_command_line(settings, words, tmp_path, capfd):
    flags = [flag for setting in settings for flag in ("--set", setting)]
    assert main(["--steps", "20", "--agents", "8", "--out", str(tmp_path / "run.h5"), *flags]) == 0
    assert words in capfd.readouterr().out


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--set", "mixing.codec=topp_k"], "did you mean top_k"),
        (["--set", "mixing.codec=top_k", "--set", "mixing.fracton=1"], "did you mean fraction"),
        (["--set", "mixing.method=fastmix"], "has no effect without mixing.accelerate"),
        (
            ["--set", "mixing.codec=top_k", "--topology", "one_peer_exponential"],
            "same neighbours at every step",
        ),
        (
            ["--set", "mixing.accelerate=2", "--solver", "relaysgd"],
            "a row of its own to each neighbour",
        ),
    ],
)
def test_the_command_line_refuses(flags, words, tmp_path, capfd):
    assert main(["--out", str(tmp_path / "run.h5"), *flags]) == 2
    assert words in capfd.readouterr().err


def test_the_list_has_the_codecs(capfd):
    assert main(["--list"]) == 0
    said = capfd.readouterr().out
    assert all(f"  {name} " in said for name in CODECS)
