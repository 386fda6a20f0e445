"""Streams: their samples on any ranks and in any order, gradients by hand, and theory of diffusion LMS."""

from contextlib import suppress

import numpy as np
import pytest

import mpidec
from mpidec import problems as P, solvers as S, theory, topology as T
from mpidec.comm.runtime.mpi import MPI

N, D = 7, 3
W = np.random.default_rng(1).standard_normal(D)
POWER, NOISE = np.random.default_rng(2).uniform(0.5, 1.5, (2, N))


def draw(rng, agent, k):
    z = rng.standard_normal(D + 1)
    return POWER[agent] * z[:D], POWER[agent] * z[:D] @ W + NOISE[agent] * z[D]


def complex_draw(rng, agent, k):
    u = rng.standard_normal(D) + 1j * rng.standard_normal(D)
    return u, u @ (W + 1j) + NOISE[agent] * (rng.standard_normal() + 1j)


def stream(net, of=draw, **options):
    return P.Stream(of, net.m, D, lo=net.lo, x_star=W, **options)


def squared(x, u, y):
    """The loss of least squares, of one sample."""
    r = u @ x - y
    return abs(r) ** 2 / 2, u.conj() * r


@pytest.fixture
def net(comm):
    with mpidec.Network(N, comm) as made:
        yield made


def test_runs_have_the_same_bits_on_any_ranks_and_after_a_resume(net, shared_tmp):
    def run(steps, on, record=None):
        return mpidec.solve(
            stream(on, seed=4), S.DGD(0.05), T.ring(N), steps=steps, net=on, seed=3, record=record
        )

    def ends(step, *_):
        if step >= 20:  # after a checkpoint, without another one
            raise RuntimeError("killed")

    path = shared_tmp / "run.h5"
    with suppress(RuntimeError):
        mpidec.solve(
            stream(net, seed=4),
            S.DGD(0.05),
            T.ring(N),
            steps=40,
            net=net,
            seed=3,
            every=5,
            record=mpidec.Record(path, checkpoint_seconds=1e-9),
            progress=ends,
        )
    resumed = run(40, net, mpidec.Record(path, resume=True))
    assert resumed.metrics["step"][0] > 0
    with mpidec.Network(N, MPI.COMM_SELF) as alone:
        whole = run(40, alone)
    np.testing.assert_array_equal(resumed.X, whole.X[net.lo : net.hi])
    np.testing.assert_array_equal(run(40, net).metrics["objective"], whole.metrics["objective"])


@pytest.mark.serial
def test_samples_belong_to_seed_agent_and_step_in_any_order():
    seen = {}

    def noted(rng, agent, k):
        u, y = draw(rng, agent, k)
        seen.setdefault((agent, k), set()).add(u.tobytes())
        return u, y

    made = P.Stream(noted, N, D, held_out=1)
    gradient = made.start(range(N), 5)
    X = np.random.default_rng(0).standard_normal((N, D))
    seen.clear()
    every = [gradient(X, k) for k in range(3)]
    for k in reversed(range(3)):
        some = gradient(X[[4, 2]], k, agents=[4, 2])
        np.testing.assert_array_equal(some, every[k][[4, 2]])
    run = dict(seen)
    assert len(run) == 3 * N == len(set.union(*run.values()))
    seen.clear()
    made.value(X)
    made.start(range(N), 6)(X, 0)
    P.Stream(noted, N, D, seed=1, held_out=1).start(range(N), 5)(X, 0)
    assert not set.union(*seen.values()) & set.union(*run.values())
    seen.clear()
    counts = mpidec.simulate(made, S.PairwiseGossip(0.05), T.ring(N), steps=30, seed=5).counts
    assert seen.keys() == {(i, k) for i in range(N) for k in range(counts[i])}
    assert all(samples <= seen[key] for key, samples in run.items() if key in seen)


@pytest.mark.serial
@pytest.mark.parametrize("loss", ["least_squares", squared])
@pytest.mark.parametrize("of", [draw, complex_draw])
def test_gradients_are_those_of_samples_and_of_their_mean(of, loss):
    drawn = []

    def noted(rng, agent, k):
        drawn.append(of(rng, agent, k))
        return drawn[-1]

    made = P.Stream(noted, N, D, loss=loss, held_out=6)
    X = np.random.default_rng(0).standard_normal((2, N, D)).astype(made.dtype)
    X = X[0] + 1j * X[1] if made.dtype == complex else X[0]
    drawn.clear()
    G = made.start(range(N), 0)(X, 9)
    expected = [u.conj() * (u @ x - y) for x, (u, y) in zip(X, drawn)]
    np.testing.assert_allclose(G, expected, rtol=1e-13)
    drawn.clear()
    f, G = made.value(X), made.grad(X)
    means = np.array([squared(X[j // 6], u, y)[0] for j, (u, y) in enumerate(drawn)])
    np.testing.assert_allclose(f, means.reshape(N, 6).mean(axis=1), rtol=1e-13)
    V = np.random.default_rng(8).standard_normal((2, N, D))
    V = V[0] + 1j * V[1] if made.dtype == complex else V[0]
    slope = (made.value(X + 1e-6 * V) - made.value(X - 1e-6 * V)) / 2e-6
    np.testing.assert_allclose((V.conj() * G).sum(axis=1).real, slope, rtol=1e-7)
    np.testing.assert_array_equal(made.grad(X[[3]], agents=[3]), G[[3]])


@pytest.mark.serial
def test_diffusion_lms_rests_where_theory_says():
    n, d, mu = 10, 8, 0.15
    power, noise = np.random.default_rng(0).uniform(0.5, 1.0, (2, n))
    w = np.ones(d)

    def received(rng, agent, k):
        z = rng.standard_normal(d + 1)
        u = power[agent] * np.sign(z[:d])
        return u, u @ w + noise[agent] * z[d]

    made = P.Stream(received, n, d, x_star=w)
    diffusion, graph = S.DGD(mu, order="atc"), T.ring(n)
    lms = mpidec.solve(made, diffusion, graph, steps=3000, every=5)
    found = 10 * np.log10((lms.metrics["error_rms"][30:] ** 2).mean() * (w @ w))
    assert abs(found - theory.steady_state(made, diffusion, graph).msd_db) < 0.1


@pytest.mark.serial
def test_auto_and_safe_step_sizes_of_streams():
    made = P.Stream(draw, N, D, x_star=W)
    auto, safe = (mpidec.solve(made, S.DGD(a), T.ring(N), steps=300) for a in ("auto", "safe"))
    assert auto.choice.rule == "error" and safe.choice.rule == "safe"
    assert auto.metrics["error_rms"][-1] < 2 * auto.choice.expected
    moving = P.Stream(draw, N, D, x_star=lambda k: W)
    with pytest.warns(RuntimeWarning, match="the minimizer moves.* runs with the safe step size"):
        assert mpidec.solve(moving, S.DGD("auto"), T.ring(N), steps=9).choice.rule == "safe"


@pytest.mark.serial
def test_held_out_samples_of_a_minimizer_that_moves_are_those_of_step_0():
    steps = set()

    def noted(rng, agent, k):
        steps.add(k)
        return draw(rng, agent, k)

    P.Stream(noted, 2, D, held_out=3).value(np.zeros((2, D)))
    assert steps == {0, 1, 2}
    steps.clear()
    P.Stream(noted, 2, D, held_out=3, x_star=lambda k: W).value(np.zeros((2, D)))
    assert steps == {0}
    with pytest.raises(ValueError, match="the minimizer of Stream moves, expected a constant one"):
        theory.rate(P.Stream(noted, 2, D, x_star=lambda k: W), S.DGD(0.1), T.ring(2))


@pytest.mark.serial
@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"draw": 3}, TypeError, r"draw is 3, expected a function of \(rng, agent, k\)"),
        ({"draw": lambda rng, agent, k: 0}, TypeError, r"agent=0, k=0\), expected \(u, y\): "),
        ({"draw": lambda rng, i, k: ([1, 2], 0)}, ValueError, r"\(2,\) and \(\), expected \(3,\)"),
        ({"draw": lambda rng, i, k: (W, W)}, ValueError, r"and \(3,\), expected \(3,\) and \(\)"),
        ({"draw": lambda rng, i, k: (W, "x")}, ValueError, r"k=0\) returns .*, expected numbers"),
        ({"loss": "squares"}, ValueError, "loss is 'squares', expected one of least_squares, or"),
        ({"m": -1}, ValueError, "Stream: m is -1"),
        ({"x_star": W[:2]}, ValueError, r"x_star has shape \(2,\), expected \(3,\)"),
        ({"x_star": [1.0, np.nan, 0.0]}, ValueError, r"x_star is \[ 1\. nan.*expected finite"),
        ({"seed": -1}, ValueError, "Stream: seed is -1"),
    ],
)
def test_what_is_no_stream_is_refused(options, error, says):
    with pytest.raises(error, match=says):
        P.Stream(**{"draw": draw, "m": N, "d": D, **options})


@pytest.mark.serial
def test_wrong_agents_and_gradients_of_streams_are_refused():
    with pytest.raises(ValueError, match=r"lo = 2 and m = 7, expected 0 and 7: .*lo=net.lo"):
        mpidec.solve(P.Stream(draw, N, D, lo=2, held_out=1), S.DGD(0.1), T.ring(N), steps=1)
    with pytest.raises(ValueError, match=r"shapes \(\) and \(2,\), expected \(\) and \(3,\)"):
        P.Stream(draw, N, D, loss=lambda x, u, y: (0.0, u[:2])).value(np.zeros((N, D)))
    with pytest.raises(TypeError, match=r"loss\(x, u, y\) returns a float64, expected a pair"):
        P.Stream(draw, N, D, loss=lambda x, u, y: u @ x).value(np.zeros((N, D)))
    wrong = lambda x, u, y: (squared(x, u, y)[0], 2 * squared(x, u, y)[1])
    with pytest.raises(ValueError, match=r"problem Stream: grad.* is not the gradient of value"):
        mpidec.solve(P.Stream(draw, N, D, loss=wrong), S.DGD(0.1), T.ring(N), steps=1)
    unchecked = P.Stream(draw, N, D, loss=wrong, check=False)
    assert mpidec.solve(unchecked, S.DGD(0.1), T.ring(N), steps=1).steps == 1
    with pytest.raises(TypeError, match="complex samples, but the rows are real"):
        P.Stream(complex_draw, N, D, held_out=1).grad(np.zeros((N, D)))


def test_the_view_of_a_complex_stream_has_its_samples(net):
    """They had been replaced by gradients of the held-out samples, without noise."""
    whole, view = stream(net, complex_draw), P.RealView(stream(net, complex_draw))
    runs = [mpidec.solve(p, S.DGD(0.05), T.ring(N), steps=20, net=net) for p in (whole, view)]
    np.testing.assert_array_equal(runs[1].X.view(complex), runs[0].X)
    for name in ("error_max", "gradient_norm"):
        np.testing.assert_array_equal(*(run.metrics[name] for run in runs))
    mine = P.RealView(P.Stream(complex_draw, N, D, x_star=W))
    X = np.random.default_rng(0).standard_normal((1, 2 * D))
    one = mine.start(range(N), seed=3)(X, 5, agents=[2])
    them = P.Stream(complex_draw, N, D).start(range(N), seed=3)
    np.testing.assert_array_equal(one.view(complex), them(X.view(complex), 5, agents=[2]))
