"""A row- and a column-stochastic matrix in one step: weights, operators, exactness, codecs, files."""

import numpy as np
import pytest
from helpers.solvers import digraph
from mpi4py import MPI

import mpidec
from mpidec import solvers as S, topology as T
from mpidec.experiment.command import main
from mpidec.record import Record, read

D = 3


def problem_of(net, n, seed=0):
    rng = np.random.default_rng([seed, n])
    A, b = rng.standard_normal((n, 5, D)), rng.standard_normal((n, 5))
    x = np.linalg.lstsq(A.reshape(-1, D), b.reshape(-1), rcond=None)[0]
    return mpidec.problems.LeastSquares(A[net.lo : net.hi], b[net.lo : net.hi]), x


@pytest.mark.serial
def test_what_is_no_pair_is_refused():
    row, column = T.star(4, weights="uniform"), T.star(4, weights="push")
    with pytest.raises(
        ValueError, match=r'C, the star topology, is row stochastic.*weights="push"'
    ):
        T.push_pull(row, row)
    with pytest.raises(ValueError, match="R has 4 agents and C 5"):
        T.push_pull(row, T.ring(5))
    with pytest.raises(TypeError, match=r"R is a ndarray.*from_weights"):
        T.push_pull(np.eye(4), column)
    with pytest.raises(
        ValueError, match=r"topology 0 \(star\) is row stochastic and topology 1 \(star\) a pair"
    ):
        T.cycle([row, T.push_pull(row, column)])
    with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        problem, _ = problem_of(net, 4)
        with pytest.raises(
            ValueError, match=r'DGD needs .* topology is a pair; use weights="metropolis"'
        ):
            mpidec.solve(problem, S.DGD(0.1), T.push_pull(row, column), steps=1, net=net)
        with pytest.raises(
            ValueError, match=r'PushPull needs .* row stochastic; use weights="push-pull"'
        ):
            mpidec.solve(problem, S.PushPull(0.1), row, steps=1, net=net)
        with pytest.raises(ValueError, match="acceleration needs a symmetric W"):
            net.mixer(T.push_pull(row, column)).accelerate(2)


@pytest.mark.parametrize("n", [3, 5, 7])
def test_both_operators_of_a_step(n):
    topology = T.cycle([digraph(n), T.ring(n), digraph(n, seed=8)])
    X = np.random.default_rng(n).standard_normal((n, D))
    with mpidec.Network(n) as net:
        mixer, mine = net.mixer(topology), slice(net.lo, net.hi)
        for k in range(4):
            W, now = mixer.at(k), topology.at(k)
            for operator, matrix in (
                (W.R, now.R),
                (W, now.R),
                (W.C, now.C),
                (W.next.C, topology.at(k + 1).C),
            ):
                np.testing.assert_allclose(
                    operator(X[mine]), (matrix.W.toarray() @ X)[mine], rtol=1e-13, atol=1e-15
                )
        edges = [
            np.count_nonzero(part.at(k).W.toarray()) - n
            for k in range(4)
            for part in (topology.at(k).R, topology.at(k).R, topology.at(k).C, topology.at(k + 1).C)
        ]
        sent = net.comm.allreduce(mixer.bytes)
        assert sent == 8 * D * sum(edges)


@pytest.mark.parametrize("n", [3, 5, 7, 12])
@pytest.mark.parametrize("variant", ["atc", "ab"])
def test_exact_on_random_digraphs(n, variant):
    with mpidec.Network(n) as net:
        problem, x = problem_of(net, n)
        solver = S.PushPull(variant=variant)
        result = mpidec.solve(problem, solver, digraph(n), steps=900, net=net, every=900)
        np.testing.assert_allclose(result.X, np.tile(x, (net.m, 1)), rtol=0, atol=1e-10)


def test_compressed_pairs_are_exact_and_resume(tmp_path):
    n = 5
    path = net_path(tmp_path)
    with mpidec.Network(n) as net:
        problem, x = problem_of(net, n)
        mixing = lambda W: W.compress("top_k", k=2, gamma=0.4)
        solver, topology = S.PushPull(0.01), T.star(n, weights="push-pull")
        go = dict(topology=topology, net=net, mixing=mixing, every=100)
        if net.size == 1:
            whole = mpidec.solve(problem, solver, steps=2400, **go)
            np.testing.assert_allclose(whole.X, np.tile(x, (net.m, 1)), rtol=0, atol=1e-9)
        mpidec.solve(problem, solver, steps=100, record=Record(path), **go)
        file = read(path)
        np.testing.assert_array_equal(file.columns[0].toarray(), topology.C.W.toarray())
        np.testing.assert_array_equal(file.topology[0].toarray(), topology.W.toarray())
        resumed = mpidec.solve(problem, solver, steps=200, record=Record(path, resume=True), **go)
        straight = mpidec.solve(problem, solver, steps=200, **go)
        np.testing.assert_array_equal(resumed.X, straight.X)
        assert resumed.metrics["bytes"][-1] == straight.metrics["bytes"][-1] == 200 * 16 * 2 * 12
        with pytest.raises(Exception, match="another W"):
            mpidec.solve(
                problem,
                solver,
                steps=300,
                record=Record(path, resume=True),
                **go | {"topology": T.push_pull(topology.R, T.from_weights(digraph(n).C.W))},
            )


def net_path(tmp_path):
    return MPI.COMM_WORLD.bcast(str(tmp_path / "run.h5"))


@pytest.mark.serial
def test_the_command_line(tmp_path, capfd):
    out = str(tmp_path / "run.h5")
    flags = ["--solver", "push_pull", "--topology", "star", "--set", "topology.weights=push-pull"]
    assert main([*flags, "--agents", "5", "--steps", "300", "--out", out]) == 0
    assert len(read(out).columns) == 1
    assert main(["--resume", out, "--steps", "310"]) in (0, 3)
    flags[-1] = "topology.weights=push"
    assert main([*flags, "--out", out + "2"]) == 2
    assert 'weights="push-pull"' in capfd.readouterr().err
