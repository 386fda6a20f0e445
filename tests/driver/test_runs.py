"""Many runs at once: each has the bits that it has alone, or they are refused."""

import dataclasses

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import solvers, topology
from mpidec.comm.mixing.codecs import CODECS
from mpidec.problems import (
    SAGA,
    LeastSquares,
    MiniBatch,
    Noisy,
    Stream,
    Subgradient,
    l1,
    load_problem,
)
from mpidec.solvers.internals import is_asynchronous
from mpidec.testing.case import graph_of, with_number
from mpidec.testing.contract import variants

RUNS, D = 3, 3
DATA = np.random.default_rng(0)
A, B = DATA.standard_normal((8, 6, D)), DATA.standard_normal((8, 6))
W_STAR = np.arange(1.0, D + 1)
RING = topology.ring(8)


def draw(rng, agent, k):
    u = rng.standard_normal((*np.shape(k), D))
    return u, u @ W_STAR + 0.1 * (1 + agent) * rng.standard_normal(np.shape(k))


def complex_draw(rng, agent, k):
    u, y = draw(rng, agent, k)
    return u * 1j, y * (1 + 1j)


def squares(net, term=None, dtype=float):
    return LeastSquares(
        A[net.lo : net.hi].astype(dtype), B[net.lo : net.hi].astype(dtype), term=term
    )


def batches(net):
    return MiniBatch(squares(net), 2)


def stream(net, draw=draw, block=1):
    return Stream(draw, net.m, D, lo=net.lo, block=block, x_star=W_STAR)


def check(make, solver, graph, mixing=lambda run: None, steps=6, **options):
    """Compare the runs together with each of them alone; on all ranks, and in this process."""
    with mpidec.Network(graph.n) as net:
        with mpidec.Network(graph.n, comm=MPI.COMM_SELF) as single:
            options |= {"steps": steps, "every": 4}
            given = {"mixing": mixing(0), "seed": 5, "runs": RUNS, **options}
            many = mpidec.solve(make(net), solver, graph, net=net, **given)
            here = many.X
            if net.size > 1:
                here = mpidec.solve(make(single), solver, graph, net=single, **given).X
                here = here[net.lo : net.hi]
        np.testing.assert_array_equal(many.X, here)
        for run in range(RUNS):
            one = mpidec.solve(
                make(net), solver, graph, net=net, seed=5 + run, mixing=mixing(run), **options
            )
            assert np.isfinite(one.X).all() and one.X.dtype == many.X.dtype
            np.testing.assert_array_equal(many.X[:, run], one.X, err_msg=f"{solver!r}, run {run}")
            np.testing.assert_array_equal(many.x[run], one.x)


SYNCHRONOUS = [kind for kind in solvers.CATALOGUE.values() if not is_asynchronous(kind)]


@pytest.mark.serial
@pytest.mark.filterwarnings("ignore:.*integrates the noise")
@pytest.mark.parametrize("kind", SYNCHRONOUS, ids=lambda kind: kind.__name__)
def test_every_solver(kind):
    for solver in map(with_number, variants(kind)):
        needs, graph = solver.needs, graph_of(solver)
        if not solver.columnwise or needs.data:
            with pytest.raises(mpidec.RunsError, match=r"computes with whole rows|takes samples"):
                mpidec.solve(None, solver, graph, steps=1, runs=RUNS, x0=np.zeros(D))
            continue
        if needs.functions == ("grad",) or "prox" in needs.functions:
            check(batches, solver, graph)
            continue
        noisy = lambda run: lambda W: W.noisy(0.1, seed=run)  # nothing else draws
        make = squares if needs.problem else lambda net: None
        check(make, solver, graph, noisy, x0=np.arange(graph.n * D).reshape(graph.n, D))


@pytest.mark.serial
@pytest.mark.parametrize("name", CODECS)
def test_every_codec(name):
    options = {"k": 2} if name.endswith("_k") else {}
    draws = "seed" in {field.name for field in dataclasses.fields(CODECS[name])}

    def mixing(run, **more):
        seed = {"seed": 7 + run} if draws else {}
        return lambda W: W.compress(name, **options, **seed, **more)

    check(batches, solvers.CHOCO(0.02), RING, mixing)
    if name != "top_k":
        check(
            batches,
            solvers.DGD(0.02),
            RING,
            lambda run: lambda W: mixing(run, feedback=False)(W).noisy(0.1, seed=run),
        )


ORACLES = {
    "stream": stream,
    "blocks": lambda net: stream(net, block=4),
    "complex": lambda net: stream(net, complex_draw, block=4),
    "saga": lambda net: SAGA(squares(net), 2),
    "noisy": lambda net: Noisy(batches(net), 0.3),
    "subgradient": lambda net: Subgradient(MiniBatch(squares(net, l1(0.1)), 2)),
    "float32": lambda net: MiniBatch(squares(net, dtype=np.float32), 2),
}


@pytest.mark.serial
@pytest.mark.parametrize("name", ORACLES)
def test_every_oracle(name):
    check(ORACLES[name], solvers.GradientTracking(0.02), RING, steps=9)


@pytest.mark.serial
def test_a_term_and_a_schedule_of_steps():
    check(
        lambda net: MiniBatch(squares(net, l1(0.1)), 2),
        solvers.NIDS(0.05),
        RING,
        lambda run: lambda W: W.accelerate(2),
    )
    check(batches, solvers.DGD(solvers.InverseSqrt(0.05)), topology.one_peer_exponential(8))


def test_the_same_bits_on_ranks():
    noisy = lambda run: lambda W: W.noisy(0.1, seed=run)
    check(ORACLES["blocks"], solvers.DGD(0.05), RING, noisy)
    check(ORACLES["complex"], solvers.GradientTracking(0.05), topology.one_peer_exponential(8))
    check(ORACLES["saga"], solvers.RelaySGD(0.05), topology.binary_tree(8))
    check(batches, solvers.CHOCO(0.02), RING, lambda run: lambda W: W.compress("top_k", k=2))


@pytest.mark.serial
@pytest.mark.parametrize("name", ["stream", "complex"])
def test_metrics_are_means_of_the_runs_and_their_quantiles(name):
    stop = {"error_rms": 0.12} if name == "stream" else None
    own = {"far": lambda X, agents, k: (abs(X - W_STAR) ** 2).sum(axis=1) + 0 * k}
    given = {
        "steps": 60,
        "metrics": own,
        "every": 5,
        "x0": np.zeros(D, type(1j if not stop else 1.0)),
    }
    with mpidec.Network(8, comm=MPI.COMM_SELF) as net:
        problem = ORACLES[name](net)
        many = mpidec.solve(problem, solvers.DGD(0.1), RING, net=net, runs=12, stop=stop, **given)
        each = [
            mpidec.solve(problem, solvers.DGD(0.1), RING, net=net, seed=run, **given).metrics
            for run in range(12)
        ]
    assert stop is None or (many.outcome == "stopped" and many.steps < 60)
    records = len(many.metrics["step"])
    for name in each[0].keys() - {"time"}:
        values = np.array([one[name][:records] for one in each])
        root = name.startswith(("error", "consensus", "gradient_norm"))
        expected = np.sqrt((values**2).mean(axis=0)) if root else values.mean(axis=0)
        np.testing.assert_allclose(many.metrics[name], expected, rtol=1e-9, atol=1e-15)
        if f"{name}_low" in many.metrics:
            for end, place in ("low", 1), ("high", 10):  # of 12 sorted runs
                found = many.metrics[f"{name}_{end}"]
                expected = np.sort(values, axis=0)[place]
                np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-15)
    assert {"far_low", "error_rms_high", "msd_low"} < many.metrics.keys()


def test_a_resumed_run_has_the_same_bits(tmp_path):
    path = MPI.COMM_WORLD.bcast(str(tmp_path / "run.h5"))
    with mpidec.Network(8) as net:
        given = {"net": net, "runs": RUNS, "mixing": lambda W: W.compress("top_k", k=2)}
        make = lambda: SAGA(squares(net), 2)
        whole = mpidec.solve(make(), solvers.CHOCO(0.02), RING, steps=20, **given)
        mpidec.solve(make(), solvers.CHOCO(0.02), RING, steps=10, record=path, **given)
        again = mpidec.Record(path, resume=True)
        for other in (1, 2):
            with pytest.raises(mpidec.ResumeError, match=f"runs was 3, is now {other}"):
                mpidec.solve(
                    *(make(), solvers.CHOCO(0.02), RING),
                    steps=20,
                    record=again,
                    **given | {"runs": other},
                )
        rest = mpidec.solve(make(), solvers.CHOCO(0.02), RING, steps=20, record=again, **given)
        np.testing.assert_array_equal(rest.X, whole.X)
        found = net.gather(rest.X)
    if MPI.COMM_WORLD.rank == 0:
        run = mpidec.read(path)
        np.testing.assert_array_equal(run.x, found)
        assert run.attributes["runs"] == RUNS and run.trajectory()[1].shape == (3, 8, RUNS, D)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("solver", "mixing", "exact", "said"),
    [
        (solvers.DGD(0.1), None, True, "nothing draws .*LeastSquares with exact gradients, W as"),
        (solvers.DGD(0.1), lambda W: W.lossy(0.1), False, r"lossy\(0.1.* draws once for a whole"),
        (
            solvers.DGD(0.1),
            lambda W: W.attacked({1: lambda step, agent, row: -row}),
            False,
            "attacked.* computes with a whole row",
        ),
        (solvers.DGD(0.1), lambda W: W.robust("clip", tau=1), False, "robust.* computes with"),
        (solvers.PushSum(), lambda W: W.noisy(0.1), True, "PushSum sends weights or counts"),
        (solvers.A2CiD2(0.1), None, False, "A2CiD2 is asynchronous"),
    ],
)
def test_runs_that_cannot_be_told_apart_are_refused(solver, mixing, exact, said):
    with mpidec.Network(8, comm=MPI.COMM_SELF) as net:
        problem = squares(net) if exact else batches(net)
        with pytest.raises(mpidec.RunsError, match=f"runs is 3, but .*{said}"):
            mpidec.solve(problem, solver, RING, steps=1, net=net, runs=3, mixing=mixing)


@pytest.mark.serial
def test_metrics_with_the_names_of_quantiles_are_refused():
    own = {name: lambda X, agents, k: X[:, 0] for name in ("msd", "msd_low")}
    with pytest.raises(ValueError, match="msd_low is the name of a quantile of msd"):
        mpidec.solve(Stream(draw, 8, D), solvers.DGD(0.1), RING, steps=1, runs=2, metrics=own)


@pytest.mark.serial
def test_a_file_of_several_runs_predicts_nothing(tmp_path):
    path = str(tmp_path / "run.h5")
    problem = load_problem((A[0], [-1, 1] * 3), n=2, test=0.2)
    mpidec.solve(MiniBatch(problem, 1), solvers.DGD(0.1), "ring", steps=1, runs=2, record=path)
    with pytest.raises(ValueError, match="the file of 2 runs, expected that of one"):
        mpidec.read(path).score()
