"""Triggered mixers against dense recursions, on any number of ranks: run alone, or under mpirun."""

import math
import warnings

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import registry, topology as T
from mpidec.solvers.asynchronous import is_asynchronous

N, D = 9, 5
GRAPHS = {
    "ring": T.ring(N),
    "directed": T.exponential(N),
    "schedule": T.one_peer_exponential(N),
    "striped": T.double_binary_trees(N),
}


def stack(dtype=float, d=D):
    X = np.random.default_rng([N, d]).standard_normal((2, N, d))
    return X[0] + 1j * X[1] if dtype is complex else X[0].astype(dtype)


def drift(X, k):
    return X + 0.1 * np.sin(k + X.real)


def graphs_of(topology, k, d):
    """The graphs of a step, with the columns that travel over each: (number, graph, columns)."""
    if isinstance(topology, T.Striped):
        K = topology.period
        return [(g, topology.at(g), slice(g, d, K)) for g in range(K)]
    return [(k % topology.period, topology.at(k), slice(None))]


def dense(topology, X, limits, conserving):
    """The recursion of `Trigger` with dense matrices: the rows, and the messages and bytes sent."""
    heard, messages, size = {}, 0, 0
    for k, limit in enumerate(limits):
        Y = X.copy()
        for g, graph, columns in graphs_of(topology, k, X.shape[1]):
            W, x = graph.W.toarray(), X[:, columns]
            D = np.diag(W.diagonal())
            hat = heard.setdefault(g, np.zeros_like(x))
            moves = np.linalg.norm(x - hat, axis=1) > limit
            hat[moves] = x[moves]
            Y[:, columns] = x + (W - np.eye(N)) @ hat if conserving else (W - D) @ hat + D @ x
            sent = int(((W - D)[:, moves] != 0).sum())
            messages, size = messages + sent, size + sent * x.shape[1] * x.itemsize
        X = drift(Y, k)
    return X, messages, size


@pytest.mark.parametrize(
    "name, transport, dtype, conserving",
    [
        ("ring", "shared", float, True),
        ("ring", "p2p", complex, False),
        ("directed", "neighbor", float, True),
        ("directed", "shared", complex, False),
        ("schedule", "p2p", float, True),
        ("schedule", "shared", float, False),
        ("striped", "p2p", complex, True),
        ("striped", "shared", float, False),
    ],
)
def test_the_dense_recursion_is_the_oracle_of_rows_messages_and_bits(
    name, transport, dtype, conserving
):
    topology, X = GRAPHS[name], stack(dtype)
    limit = lambda k: 0.4 * 0.95**k
    want, messages, size = dense(topology, X, list(map(limit, range(30))), conserving)
    with (
        mpidec.Network(N, transport=transport) as net,
        mpidec.Network(N, comm=MPI.COMM_SELF) as alone,
    ):
        W = net.mixer(topology).triggered(limit, conserving=conserving)
        W_alone = alone.mixer(topology).triggered(0.4, decay=0.95, conserving=conserving)
        Y, Y_alone = X[net.lo : net.hi], X
        for k in range(30):
            Y, Y_alone = drift(W.at(k)(Y), k), drift(W_alone.at(k)(Y_alone), k)
        np.testing.assert_allclose(Y, want[net.lo : net.hi], rtol=1e-12, atol=1e-12)
        assert Y.tobytes() == Y_alone[net.lo : net.hi].tobytes()
        for mixer, total in ((W, net.comm.allreduce), (W_alone, lambda x: x)):
            assert (total(mixer.messages), total(mixer.bytes)) == (messages, size)
            every = total(mixer.messages + int(mixer.withheld.sum()))
            assert every == sum(
                g.source.arcs for k in range(30) for _, g, _ in graphs_of(topology, k, D)
            )
        assert messages < every


@pytest.mark.parametrize("dtype", [np.float16, np.float32, float, complex])
@pytest.mark.parametrize("name", [*GRAPHS, "apart"])
def test_the_threshold_0_is_w_to_the_bit(name, dtype):
    X = stack(dtype)
    with np.errstate(all="ignore"):
        X[0], X[1, 0], X[2, 1] = -0.0, math.nan, math.inf
    with mpidec.Network(N) as net:
        apart = T.from_weights(np.eye(N), connected=False)
        plain = net.mixer(GRAPHS.get(name, apart))
        W, Y = plain.triggered(0), [X[net.lo : net.hi]] * 2
        for k in range(6):
            Y = [plain.at(k)(Y[0]), W.at(k)(Y[1])]
            assert Y[0].tobytes() == Y[1].tobytes()
            if k % 2:
                with np.errstate(all="ignore"):
                    Y = [drift(some, k).astype(dtype) for some in Y]


@pytest.mark.parametrize("transport", ["shared", "p2p"])
def test_several_arrays_have_a_memory_and_a_trigger_each_and_travel_in_one_message(transport):
    X, small = stack(), 1e-3 * stack(d=2)
    with mpidec.Network(N, transport=transport) as net:
        rows = slice(net.lo, net.hi)
        W = net.mixer(T.ring(N)).triggered(0.1)
        Y, Z = W({"y": X[rows], "z": small[rows]}).values()
        assert Z.tobytes() == small[rows].tobytes()
        np.testing.assert_allclose(Y, (T.ring(N).W @ X)[rows], atol=1e-15)
        counted = net.comm.allreduce(np.array([W.messages, W.bytes]))
        assert counted.tolist() == [2 * N, 2 * N * D * 8] and W.rounds == 1
        assert [some.shape for some in W.memory().values()] == [(net.m, D), (net.m, 2), (net.m, 1)]
        assert W(X[rows, :0]).shape == (net.m, 0)


@pytest.mark.parametrize("name", ["ring", "schedule", "striped", "pair"])
def test_a_mixer_continues_with_the_memory_of_another_one_on_any_number_of_ranks(name):
    graph = T.push_pull(T.exponential(N), T.star(N)) if name == "pair" else GRAPHS[name]

    def step(W, X, k):
        W = W.at(k)
        return drift(W.C(W.R(X)) if name == "pair" else W(X), k)

    with (
        mpidec.Network(N, transport="p2p") as net,
        mpidec.Network(N, comm=MPI.COMM_SELF) as alone,
    ):
        W, Y = net.mixer(graph).triggered(0.3), stack()[net.lo : net.hi]
        for k in range(8):
            Y = step(W, Y, k)
        memory = {key: net.comm.bcast(net.gather(X)) for key, X in W.memory().items()}
        V, Z = alone.mixer(graph).triggered(0.3), net.comm.bcast(net.gather(Y))
        V.recall(memory)
        again = net.mixer(graph).triggered(0.3)
        again.recall({key: X[net.lo : net.hi] for key, X in memory.items()})
        before, counted = W.withheld.copy(), W.messages
        for k in range(8, 12):
            Y, A = step(W, Y, k), step(again, Z[net.lo : net.hi], k)
            Z = step(V, Z, k)
            assert Y.tobytes() == A.tobytes() == Z[net.lo : net.hi].tobytes()
        assert (W.withheld == again.withheld).all() and (W.withheld > before).any()
        assert W.messages > counted


RANDOM = {"noloco"}  # its graphs do not come again
SOLVERS = [
    name
    for name, kind in registry.SOLVERS.own.items()
    if not (is_asynchronous(kind) or kind.needs.exchange or name in RANDOM)
]


def solved(solver, graph, mixing, steps=12):
    A, b = stack(d=12).reshape(N, 4, 3), stack(d=4)
    x_star = np.linalg.lstsq(A.reshape(-1, 3), b.reshape(-1), rcond=None)[0]
    with mpidec.Network(N) as net, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = slice(net.lo, net.hi)
        problem = None
        if solver.needs.problem:
            problem = mpidec.problems.LeastSquares(A[rows], b[rows], x_star=x_star)
        given = {"steps": steps, "every": steps, "x0": stack(d=3), "mixing": mixing}
        result = mpidec.solve(problem, solver, graph, net=net, **given)
        return net.comm.bcast(net.gather(result.X)), result.metrics


def with_step(name, step=0.02):
    kind = registry.SOLVERS[name]
    solver = kind(**({"step_size": step} if "step_size" in kind.__dataclass_fields__ else {}))
    if "pair" in solver.needs.kinds[:1]:
        return solver, T.chain(N, weights="push-pull")
    return solver, registry.TOPOLOGIES.find(solver.needs.graph)(N)


@pytest.mark.serial
@pytest.mark.parametrize("name", SOLVERS)
def test_every_synchronous_solver_with_the_threshold_0_is_itself(name):
    solver, graph = with_step(name)
    (want, _), (got, metrics) = (
        solved(solver, graph, mixing) for mixing in (None, lambda W: W.triggered(0))
    )
    assert got.tobytes() == want.tobytes()
    assert 0 < metrics["share_sent"][-1] <= 1


@pytest.mark.serial
@pytest.mark.parametrize(
    "name", ["extra", "gradient_tracking", "push_diging", "push_pull", "admm", "dlm"]
)
def test_exact_methods_reach_the_minimizer_if_the_threshold_decays(name):
    solver, graph = with_step(name, 0.05)
    _, metrics = solved(solver, graph, lambda W: W.triggered(0.5, decay=0.95), 500)
    assert metrics["error_max"][-1] < 1e-8 and metrics["share_sent"][-1] < 0.96
    _, metrics = solved(solver, graph, lambda W: W.triggered(0.01), 200)
    assert 1e-6 < metrics["error_max"][-1] < 0.2 and metrics["share_sent"][-1] < 0.96


@pytest.mark.serial
@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda W: W.triggered(-1), ValueError, "threshold is -1, expected a finite number >= 0"),
        (lambda W: W.triggered(0.1, decay=2), ValueError, "decay is 2, expected .* <= 1"),
        (lambda W: W.triggered(lambda k: 0.1, decay=0.5), ValueError, "beside a function"),
        (lambda W: W.triggered(lambda: 0.1), TypeError, "k"),
        (lambda W: W.triggered(lambda k: None).at(3)(np.ones((N, 1))), TypeError, "for step 3"),
        (lambda W: W.compress("top_k").triggered(0.1), ValueError, "a codec and a threshold both"),
        (lambda W: W.triggered(0.1).compress("top_k"), ValueError, "a codec and a threshold both"),
        (lambda W: W.triggered(0.1).lossy(0.1), ValueError, "must have heard the same row"),
        (lambda W: W.noisy(0.1).triggered(0.1), ValueError, "must have heard the same row"),
        (lambda W: W.repeat(2).triggered(0.1), ValueError, r"W.triggered\(...\).repeat"),
    ],
)
def test_what_is_refused(make, error, words):
    with mpidec.Network(N) as net, pytest.raises(error, match=words):
        make(net.mixer(T.ring(N)))


@pytest.mark.serial
def test_schedules_that_do_not_come_again_are_refused():
    with mpidec.Network(N) as net, pytest.raises(ValueError, match="do not come again"):
        net.mixer(T.random_matchings(T.ring(N))).triggered(0.1)


@pytest.mark.parametrize("call", ["repeat", "accelerate"])
def test_several_mixings_in_a_step(call):
    """Polynomials of W, whose mixings have their steps (repeat), or their memories (accelerate)."""
    graph, X, hats = T.ring(N), stack(), np.zeros((3, N, D))
    W = graph.W.toarray()

    def sent(X, hat, limit):
        moves = np.linalg.norm(X - hat, axis=1) > limit
        hat[moves] = X[moves]
        return X + (W - np.eye(N)) @ hat

    with mpidec.Network(N) as net:
        mixer = net.mixer(graph).triggered(lambda k: 0.3 / (k + 1))
        made = mixer.repeat(3) if call == "repeat" else mixer.accelerate(3)
        Y = X[net.lo : net.hi]
        for k in range(4):
            Y = made.at(k)(Y)
            before, now = X, X
            for j in range(3):
                if call == "repeat":
                    now = sent(now, hats[0], 0.3 / (3 * k + j + 1))
                else:
                    omega = made.omegas(D)[j]
                    mixed = sent(now, hats[j], 0.3 / (k + 1))
                    before, now = now, omega * mixed + (1 - omega) * before
            X = now
            np.testing.assert_allclose(Y, X[net.lo : net.hi], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("eps", [0.05, 0.2])
def test_a_constant_threshold_stays_within_the_published_bound(eps):
    """Seyboth, Dimarogonas and Johansson (2013): ||x - average|| <= ||L|| sqrt(N) c / lambda_2(L)."""
    L = 2 * np.eye(N) - np.eye(N, k=1) - np.eye(N, k=-1)
    L[0, -1] = L[-1, 0] = -1
    spectrum, c = np.linalg.eigvalsh(L), 0.1
    X = 10 * stack()
    with mpidec.Network(N) as net:
        W = net.mixer(T.from_weights(np.eye(N) - eps * L)).triggered(c)
        Y, mean, far = X[net.lo : net.hi], X.mean(axis=0), []
        for k in range(300):
            Y = W.at(k)(Y)
            if k > 200:
                far.append(math.sqrt(net.sum(((Y - mean) ** 2).sum(axis=1, keepdims=True))[0]))
        assert 0.01 < max(far) <= spectrum[-1] * math.sqrt(N) * c / spectrum[1]
        np.testing.assert_allclose(net.mean(Y), mean, rtol=1e-12)
        assert W.withheld.sum() > 0


@pytest.mark.serial
def test_a_resumed_run_has_the_bits_and_the_counts_of_an_uninterrupted_one(tmp_path):
    problem = mpidec.problems.LeastSquares(stack(d=12).reshape(N, 4, 3), stack(d=4))
    given = {"every": 5, "mixing": lambda W: W.triggered(0.3, decay=0.97)}
    solver, graph = mpidec.solvers.GradientTracking(0.05), T.one_peer_exponential(N)

    def run(name, steps, resume=False):
        record = mpidec.Record(str(tmp_path / name), resume=resume)
        return mpidec.solve(problem, solver, graph, steps=steps, record=record, **given)

    whole = run("whole.h5", 40)
    run("parts.h5", 15)
    parts = run("parts.h5", 40, resume=True)
    assert whole.X.tobytes() == parts.X.tobytes()
    for name in ("rows", "bytes", "share_sent"):
        assert whole.metrics[name][-1] == parts.metrics[name][-1]
    assert whole.metrics["share_sent"][-1] < 1


@pytest.mark.serial
def test_dlm_is_cola_with_a_linear_rate_and_admm_is_censored():
    """The published equations, agent by agent, with the penalty c of an edge."""
    graph, c, rho, decay, steps = T.ring(N, weights="best_constant"), 0.4, 30.0, 0.98, 600
    A, b = stack(d=12).reshape(N, 4, 3), stack(d=4)
    x_star = np.linalg.lstsq(A.reshape(-1, 3), b.reshape(-1), rcond=None)[0]
    problem = mpidec.problems.LeastSquares(A, b, x_star=x_star)
    neighbours = [graph.in_neighbors(i) for i in range(N)]

    def apart(hat):
        return c * np.array([sum(hat[i] - hat[j] for j in neighbours[i]) for i in range(N)])

    def censored(update, steps):
        x = hat = lam = np.zeros((N, 3))
        sent = 0
        for k in range(steps):
            x = update(x, hat, lam)
            moves = np.linalg.norm(x - hat, axis=1) > 0.5 * decay ** (k + 1)
            hat, sent = np.where(moves[:, None], x, hat), sent + 2 * moves.sum()
            lam = lam + apart(hat)
        return x, sent

    def linearized(x, hat, lam):
        return x - (problem.grad(x) + apart(hat) + lam) / (2 * c * 2 + rho)

    def minimized(x, hat, lam):
        """The minimizer of f_i(z) + <lam, z> + c sum_j ||z - x_i + (hat_i - hat_j) / 2||^2."""
        H = np.einsum("ipa,ipb->iab", A, A) + 2 * c * 2 * np.eye(3)
        right = np.einsum("ipa,ip->ia", A, b) - lam + 2 * c * 2 * x - apart(hat)
        return np.linalg.solve(H, right[..., None])[..., 0]

    mixing, w = (lambda W: W.triggered(0.5, decay=decay)), graph.W[0, 1]
    x, _ = censored(minimized, 30)
    result = mpidec.solve(problem, mpidec.solvers.ADMM(w / (2 * c)), graph, steps=30, mixing=mixing)
    np.testing.assert_allclose(result.X, x, rtol=1e-12, atol=1e-12)
    x, sent = censored(linearized, steps)
    solver = mpidec.solvers.DLM(1 / rho, penalty=c / (rho * w))
    result = mpidec.solve(problem, solver, graph, steps=steps, mixing=mixing, every=100)
    np.testing.assert_allclose(result.X, x, rtol=1e-12, atol=1e-12)
    assert result.metrics["rows"][-1] == sent < 0.9 * 2 * N * steps
    errors = result.metrics["error_max"]
    assert errors[-1] < 20 * errors[1] * decay ** (steps - 100)
