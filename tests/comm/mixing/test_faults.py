"""Attacked, noisy and robust mixers, against recursions written densely."""

import numpy as np
import pytest
from helpers.faults import stack
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.mixing import codecs


@pytest.mark.parametrize(
    "graph", [T.erdos_renyi(7, seed=1), T.double_binary_trees(7)], ids=["one", "two"]
)
def test_noise_belongs_to_the_edge_and_the_step(graph):
    n, sigma, steps = 7, 0.3, 120
    with mpidec.Network(n) as net, mpidec.Network(n, comm=MPI.COMM_SELF) as alone:

        def noise(some, seed):
            plain = some.mixer(graph)
            W, X = plain.noisy(sigma, seed=seed), stack(n, 6)[some.lo : some.hi]
            Y = np.array([W.at(k)(X) for k in range(steps)])
            return Y, Y - plain.at(0)(X)

        (Y, _), (all_, Z) = noise(net, 3), noise(alone, 3)
        np.testing.assert_array_equal(Y, all_[:, net.lo : net.hi])
        assert (all_ != noise(alone, 4)[0]).any()
        W = [graph.at(k).W.toarray() for k in range(graph.period)]
        for stripe, V in enumerate(W):
            V = V - np.diag(V.diagonal())
            part = Z[:, :, stripe :: len(W)]
            variance = sigma**2 * (V**2).sum(axis=1)
            assert (part**2).mean(axis=(0, 2)) == pytest.approx(variance, rel=0.2)
            flat = part.transpose(1, 0, 2).reshape(n, -1)
            assert abs(np.corrcoef(flat) - np.eye(n)).max() < 0.2  # independent over the edges
        twins = alone.mixer(T.striped([T.complete(n)] * 2)).noisy(sigma)(np.zeros((n, 2)))
        assert (twins[:, 0] != twins[:, 1]).all()  # and over the graphs
        step = alone.mixer(graph).noisy(sigma).at(2)
        assert (step(stack(n)) != step(stack(n))).any()  # each call has its own


@pytest.mark.parametrize("codec", ["qsgd", "blockwise8"])
def test_encoded_rows(codec):
    n, steps = 6, 40
    graph, X = T.erdos_renyi(n, p=0.6, seed=1), stack(n, 300)
    lost = np.random.default_rng(2).random((steps, n, n)) < 0.1
    lost |= lost.swapaxes(1, 2)  # both directions: nothing moves the average
    with mpidec.Network(n) as net, mpidec.Network(n, comm=MPI.COMM_SELF) as alone:

        def mixer(some, gamma=None):
            return some.mixer(graph).compress(codec, feedback=False, gamma=gamma)

        here = slice(net.lo, net.hi)
        for none in (lambda W: W.noisy(0.0), lambda W: W.lossy(0.0), lambda W: W.attacked({})):
            assert np.array_equal(mixer(net, 0.4)(X[here]), none(mixer(net, 0.4))(X[here]))
        for faulty in (lambda W: W.lossy(lost, fill="own"), lambda W: W.robust("clip", tau=1e9)):
            W, V, Y, Z = faulty(mixer(net)), faulty(mixer(alone)), X[here], X
            for _ in range(steps):
                Y, Z = W(Y), V(Z)
            np.testing.assert_array_equal(Y, Z[here])
            np.testing.assert_allclose(Z.mean(axis=0), X.mean(axis=0), rtol=0, atol=1e-13)
        C = codecs.codec(codec)
        Q, sent = (C.decode(C.encode(Y, 0, range(n)), 300, Y.dtype, 0, range(n)) for Y in (X, -X))
        change = mixer(net, 1.0).attacked({1: "sign_flip"})(X[here]) - mixer(net, 1.0)(X[here])
        others = graph.W.toarray() - np.diag(graph.W.diagonal())
        np.testing.assert_allclose(change, np.outer(others[here, 1], (sent - Q)[1]), atol=1e-12)


def test_longer_rows_are_clipped():
    n, C = 7, 2.0
    graph, X = T.erdos_renyi(n, seed=1), stack(n, 6)
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    assert lengths.min() < C < lengths.max()
    V = graph.W.toarray()
    D = np.diag(V.diagonal())
    want = D @ X + (V - D) @ (X * np.minimum(1, C / lengths))
    with mpidec.Network(n) as net, mpidec.Network(n, comm=MPI.COMM_SELF) as alone:
        W, here = net.mixer(graph).noisy(0.0, clip=C), slice(net.lo, net.hi)
        np.testing.assert_allclose(W.at(3)(X[here]), want[here], atol=1e-14)
        assert repr(W.faults[0]) == "noisy(0.0, seed=0, clip=2.0)" and not W.columnwise
        noise, both = (some.mixer(graph).noisy(0.5, clip=C).at(3) for some in (net, alone))
        np.testing.assert_array_equal(noise(X[here]), both(X)[here])


def test_edges_bear_attacks_and_noise():
    n, seen = 5, []
    graph = T.ring(n)
    edges = [(i, int(j)) for i in range(n) for j in graph.in_neighbors(i)]

    def attack(k, agent, row):
        seen.append((k, agent))
        return row + 10 * k

    with mpidec.Network(n) as net:
        rows = 1.0 + np.arange(net.lo, net.hi)[:, None]
        W = net.mixer(graph).attacked({2: attack}).at(3)
        M = W.exchange(W.to_edges(rows))
        want = [j + 1 + 30 * (j == 2) for i, j in edges if i in net.agents]
        np.testing.assert_array_equal(M.ravel(), want)
        assert seen == [(3, 2)] * (2 * (2 in net.agents))
        Y = net.mixer(graph).attacked({2: attack}).noisy(0.0).lossy(0.0).repeat(2)(rows)
        assert np.isfinite(Y).all()


def test_a_pair_is_attacked_in_both_operators():
    graph, X = T.erdos_renyi(5, seed=1, weights="push-pull"), stack(5)
    with mpidec.Network(5) as net:
        W, here = net.mixer(graph).attacked({1: 7.0}).at(0), slice(net.lo, net.hi)
        for operator, V in (W.R, graph.R.W.toarray()), (W.C, graph.C.W.toarray()):
            sent = X.copy()
            sent[1] = 7.0
            D = np.diag(V.diagonal())
            np.testing.assert_allclose(
                operator(X[here]), (D @ X + (V - D) @ sent)[here], atol=1e-14
            )


def test_refusals():
    with mpidec.Network(5) as net:
        W, pushing = net.mixer(T.ring(5)), T.erdos_renyi(5, seed=1, weights="push")
        X = np.ones((net.m, 2))
        for make, text in [
            (lambda: W.robust("clip"), "either tau"),
            (lambda: W.robust("clip", tau=1, delta=0.1), "either tau"),
            (lambda: W.robust("clip", delta=1), "delta is 1"),
            (lambda: W.robust("clip", tau=1, trim=1), "no trim"),
            (lambda: W.robust("median"), "rule is 'median'"),
            (lambda: W.robust("trimmed_mean"), "agent 0 of the ring topology has 2 neighbours"),
            (lambda: W.robust("clip", tau=1).at(0).exchange(np.zeros((10, 1))), "averages only"),
            (lambda: W.robust("clip", tau=1).lossy(0.1), "lossy of a mixer that is robust already"),
            (lambda: W.lossy(0.1).robust("clip", tau=1), "zeros in place of lost rows"),
            (lambda: W.compress("top_k").robust("clip", tau=1), "feedback=False"),
            (lambda: W.robust("clip", tau=-1), "tau is -1"),
            (lambda: net.mixer(pushing).robust("clip", tau=1), "not row-stochastic"),
            (lambda: W.attacked({5: 1.0}), "agent is 5, expected"),
            (lambda: W.attacked({1: "flip"}), "attack of agent 1 is 'flip'"),
            (lambda: W.noisy(-1), "sigma is -1"),
            (lambda: W.noisy(1, clip=0), "clip is 0"),
            (lambda: W.attacked({1: lambda *_: None})(X), "the attack of agent 1 returned None"),
            (lambda: W.attacked({1: lambda k, i, x: x[:1]})(X), r"agent 1 returned .* \(1,\)"),
            (lambda: W.robust(lambda x, Y, w: Y.mean())(X), r"rule returned .* shape \(\), exp"),
            (lambda: W.robust(lambda *_: None)(X), "the robust rule returned None"),
            (lambda: W.robust(lambda x, *_: np.negative(x, out=x))(X), "read-only"),
        ]:
            with pytest.raises(ValueError, match=text):
                make()
        with pytest.raises(TypeError, match="attack of agent 1 is None"):
            W.attacked({1: None})
        with pytest.raises(TypeError, match=r"attacks is \[1\], expected a dict"):
            W.attacked([1])


@pytest.mark.serial
def test_complex_rows_have_circular_noise_and_trimmed_means_of_their_parts():
    n, d = 6, 4000
    with mpidec.Network(n, comm=MPI.COMM_SELF) as alone:
        W, X = alone.mixer(T.complete(n)), np.ones((n, d)) * (1 + 2j)
        noise = W.noisy(1.5)(X) - X
        expected = 1.5**2 * (n - 1) / n**2
        assert abs((abs(noise) ** 2).mean() / expected - 1) < 0.05
        assert abs((noise**2).mean()) < 0.05 * expected
        X = np.random.default_rng(0).standard_normal((n, 5, 2)) @ [1, 1j]
        robust = W.robust("trimmed_mean", trim=1)
        np.testing.assert_allclose(robust(X), robust(X.real) + 1j * robust(X.imag), rtol=1e-14)


@pytest.mark.parametrize("fill", ["renormalize", "own", "zero"])
def test_an_agent_without_weight_of_its_own_that_loses_all(fill):
    """It keeps its row, or hears zeros; it does not become undefined."""
    W = np.array([[0, 0.5, 0.5], [0.25, 0.5, 0.25], [0.5, 0.5, 0]])
    lost = np.zeros((1, 3, 3), bool)
    lost[0, 0] = True
    with mpidec.Network(3) as net:
        X = stack(3)[net.lo : net.hi]
        Y = net.mixer(T.from_weights(W)).lossy(lost, fill=fill).at(0)(X)
        want = W @ stack(3)
        want[0] = 0 if fill == "zero" else stack(3)[0]
        np.testing.assert_allclose(Y, want[net.lo : net.hi], atol=1e-15)


@pytest.mark.parametrize("codec", ["top_k", "rand_k", "qsgd", "blockwise8"])
def test_default_gamma(codec):
    with mpidec.Network(5) as net:
        plain = net.mixer(T.ring(5))
        for d in (1, 10, 300):
            made = codecs.codec(codec)
            delta = made.delta(d)
            assert plain.compress(codec, feedback=True).gamma(d) == delta / (2 - delta)
            if not made.feedback:
                alone = plain.compress(codec, feedback=False).gamma(d)
                assert alone == (delta if made.unbiased else 1.0)
