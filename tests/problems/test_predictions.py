"""Held-out samples, predictions and scores: against scikit-learn and numbers by hand, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI
from scipy.sparse import csr_array

import mpidec
from mpidec.datasets.built_in import standardized
from mpidec.problems import Custom, load_problem

RNG = np.random.default_rng(8)
A = RNG.normal(size=(90, 4)) * [1, 10, 0.1, 3] + 2
SLOPES = A @ [1, -0.2, 3, 0.4]
Y = SLOPES + RNG.normal(size=90)
WORDS = np.array(["blue", "green", "red"])[np.digitize(SLOPES + RNG.normal(size=90), [0.5, 2.5])]
TWO = np.where(WORDS == "red", "red", "blue")
N = 2 * MPI.COMM_WORLD.size + 1


def loaded(y, **options):
    return load_problem((A, y), N, seed=3, intercept=True, **options)


@pytest.mark.parametrize(("y", "share"), [(WORDS, 0.2), (TWO, 1 / 3)])
def test_the_accuracy_is_that_of_the_agents_on_held_out_samples(y, share):
    """With the same bits on any number of ranks; the classes of the test set have their shares."""
    whole = loaded(y, standardize=True, test=share)
    with mpidec.Network(N) as net:
        problem = load_problem(
            (A, y), net=net, seed=3, intercept=True, standardize=True, test=share
        )
        result = mpidec.solve(problem, "dgd", "complete", steps=20, every=20, net=net)
        X = np.concatenate(net.comm.allgather(result.X))
        alone = mpidec.Network(N, MPI.COMM_SELF)
        with alone:
            same = mpidec.solve(whole, "dgd", "complete", steps=20, every=20, net=alone)
        for name in ("accuracy", "test_loss"):
            np.testing.assert_array_equal(result.metrics[name], same.metrics[name])
    S, codes = whole.given.test
    labels = np.unique(y)[codes.astype(int) if len(np.unique(y)) > 2 else (codes > 0).astype(int)]
    scores = [whole.score(x, S, labels) for x in X]
    np.testing.assert_allclose(result.metrics["accuracy"][-1], np.mean(scores), rtol=1e-14)
    assert 0.5 < np.mean(scores) < 1
    for name in np.unique(y):
        assert abs((labels == name).sum() - share * (y == name).sum()) <= 1
    train = {tuple(row) for row in A} - {tuple(row) for row in S}
    assert len(train) + len(S) == len(A) and whole.counts.sum() == len(train)
    kept = np.array([tuple(row) in train for row in A])
    scaled = (S - A[kept].mean(axis=0)) / A[kept].std(axis=0)
    np.testing.assert_allclose(whole.test.A[0, :, :-1], scaled, atol=1e-12)


def test_test_losses_are_those_of_the_formulas():
    S, t = A[:10] + 1, Y[:10]
    x = RNG.normal(size=5)
    r = np.column_stack([S, np.ones(10)]) @ x - t
    problem = loaded(Y, test=(S, t), l2=3.0, scale="mean")
    assert list(problem.metrics) == ["test_loss"]
    np.testing.assert_allclose(problem.metrics["test_loss"](x[None], range(1), 0), (r @ r) / 20)
    signs = np.where(TWO[:10] == "red", 1, -1)
    problem = loaded(TWO, test=(S, TWO[:10]))
    margins = signs * (np.column_stack([S, np.ones(10)]) @ x)
    loss = problem.metrics["test_loss"](x[None], range(1), 0)
    np.testing.assert_allclose(loss, np.log1p(np.exp(-margins)).mean())
    assert problem.metrics["accuracy"](x[None], range(1), 0) == (margins > 0).mean()


@pytest.mark.serial
def test_predictions_and_scores_are_those_of_scikit_learn():
    linear = pytest.importorskip("sklearn.linear_model")
    S = standardized(A)
    for y, model in (
        (Y, linear.Ridge(alpha=2.0)),
        (WORDS, linear.LogisticRegression(C=0.5, tol=1e-12)),
        (np.where(TWO == "red", 7, 3), linear.LogisticRegression(C=0.5, tol=1e-12)),
    ):
        problem = loaded(y, standardize=True, l2_total=2.0)
        result = mpidec.solve(problem, "nids", "complete", steps=1500, stop={"error": 1e-9})
        guess = result.predict(A)
        theirs = model.fit(S, y).predict(S)
        if y is Y:
            np.testing.assert_allclose(guess, theirs, atol=1e-6)
        else:
            np.testing.assert_array_equal(guess, theirs)
        np.testing.assert_allclose(result.score(A, y), model.score(S, y), rtol=1e-6)
        np.testing.assert_array_equal(problem.predict(result.x, np.c_[A, np.ones(90)]), guess)


@pytest.mark.serial
def test_files_hold_the_test_set_of_a_stop_at_an_accuracy(tmp_path):
    for name, rows in (("train", slice(60)), ("test", slice(60, None))):
        lines = [",".join([*map(str, row), word]) for row, word in zip(A[rows], TWO[rows])]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    problem = load_problem(
        tmp_path / "train.csv", 3, test=tmp_path / "test.csv", standardize=True, intercept=True
    )
    result = mpidec.solve(problem, "extra", "ring", steps=300, every=1, stop={"accuracy": 0.8})
    assert result.outcome == "stopped"
    accuracy = result.metrics["accuracy"]
    assert accuracy[-1] >= 0.8 > accuracy[:-1].max()
    best = mpidec.solve(problem, "extra", "ring", steps=30, stop={"accuracy": 1.1})
    assert best.outcome == "missed" and "accuracy" in best.reason
    simulated = mpidec.simulate(problem, "async_push_sum", "ring", steps=20, stop={"accuracy": 0.8})
    assert simulated.outcome == "stopped" and simulated.score(A, TWO) > 0.7


@pytest.mark.serial
def test_scores_compare_labels_as_they_were_given():
    """As text, bytes or objects, of sparse samples, too; scores had been 0."""
    digits, x = np.where(TWO == "red", 7, 3), RNG.normal(size=5)
    score = loaded(digits).score(x, A, digits)
    assert 0 < score < 1
    for y in (TWO, TWO.astype("S"), TWO.astype(object), digits.astype(str), digits.astype("S")):
        sparse = csr_array(A)
        assert loaded(y).score(x, A, y) == score == loaded(y).score(x, sparse, y.tolist())
    with pytest.raises(ValueError, match="y holds int64, expected names of classes, such as"):
        loaded(TWO).score(x, A, digits)


def own(A, y):
    return Custom(lambda X: (X**2).sum(axis=1), lambda X: 2 * X, len(A), A.shape[2])


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"test": 1.0}, ValueError, "test is 1.0, expected a finite number > 0 and < 1"),
        ({"test": 0.001}, ValueError, "test = 0.001 of 90 samples is none"),
        ({"test": (A[:, :3], TWO)}, ValueError, "test has 3 features, expected 4"),
        ({"test": (A, WORDS)}, ValueError, "test has the label green, expected .*: blue, red"),
        ({"test": 0.5, "problem": own}, ValueError, "test is given, but own predicts nothing"),
    ],
)
def test_what_is_no_test_set_is_refused(options, error, says):
    y = Y if "problem" in options else TWO
    with pytest.raises(error, match=says):
        load_problem((A, y), 5, **options)


def test_what_predicts_nothing_says_so():
    problem = loaded(TWO)
    with pytest.raises(ValueError, match=r"A has shape \(2, 3\), expected \(N, 4\)"):
        problem.predict(np.zeros(5), A[:2, :3])
    with pytest.raises(ValueError, match=r"y has shape \(3,\), expected \(2,\)"):
        problem.score(np.zeros(5), A[:2], TWO[:3])
    with pytest.raises(ValueError, match="one target per sample, at least one"):
        problem.score(np.zeros(5), A[:0], TWO[:0])
    with pytest.raises(ValueError, match="A is nan at row 1, column 2, expected finite numbers"):
        problem.predict(np.zeros(5), np.where(A[1, 2] == A, np.nan, A))
    assert loaded(Y).score(np.zeros(5), A[:3], [0, 0, 0]) == 1.0
    with mpidec.Network(1, MPI.COMM_SELF) as net:
        result = mpidec.solve(own(A[None], Y), "dgd", "complete", steps=1, net=net)
        with pytest.raises(TypeError, match=r"problem Custom has no predict\(x, A\)"):
            result.predict(A)


@pytest.mark.parametrize("y", [WORDS, TWO, Y], ids=["words", "two", "numbers"])
def test_without_arguments_the_score_is_that_of_the_samples_held_out(y):
    with mpidec.Network(N) as net:
        options = {"net": net, "seed": 3, "intercept": True, "standardize": True, "l2": 0.01}
        problem = load_problem((A, y), test=0.2, **options)
        result = mpidec.solve(problem, "dgd", "complete", steps=20, every=20, net=net)
        S, labels = problem.held_out
        assert len(S) == len(labels) > 10 and set(labels.tolist()) <= set(y.tolist())
        assert result.score() == result.score(S, labels)
        own = {tuple(row): label for row, label in zip(A, y)}
        assert [own[tuple(row)] for row in S] == labels.tolist()
        for given in ({"A": S}, {"y": labels}):
            with pytest.raises(ValueError, match=r"score has no [Ay]: expected samples and their"):
                result.score(**given)
        plain = mpidec.solve(load_problem((A, y), **options), "dgd", "complete", steps=2, net=net)
    with pytest.raises(ValueError, match=r"none held out: give them, score\(A, y\), or load"):
        plain.score()


@pytest.mark.serial
def test_held_out_samples_that_a_file_does_not_store_are_named(tmp_path, monkeypatch):
    problem = load_problem((A, TWO), n=N, test=0.2)
    mpidec.solve(problem, "dgd", "complete", steps=2, record=tmp_path / "all.h5")
    monkeypatch.setattr(mpidec._predictions, "TEST_BYTES", 100)
    path = tmp_path / "part.h5"
    mpidec.solve(problem, "dgd", "complete", steps=2, record=path)
    with pytest.raises(ValueError, match=r"those held out take .* MiB, and .*part\.h5 stores at"):
        mpidec.read(path).score()
    expected = mpidec.read(tmp_path / "all.h5").score()
    assert mpidec.read(path).score(*problem.held_out) == expected


NAMES = ["u", "v", "w", "z"]


@pytest.mark.serial
@pytest.mark.parametrize("y", [WORDS, TWO, Y, np.where(TWO == "red", 7, 3)])
@pytest.mark.parametrize("options", [{}, {"standardize": True, "intercept": True}])
def test_a_run_file_alone_predicts_as_the_result(y, options, tmp_path):
    pandas = pytest.importorskip("pandas")
    path, frame = tmp_path / "run.h5", pandas.DataFrame(A, columns=NAMES)
    problem = load_problem((frame, y), 3, test=0.2, **options)
    result = mpidec.solve(problem, "dgd", "complete", steps=20, record=path)
    run = mpidec.record.read(path)
    np.testing.assert_array_equal(run.predict(A), result.predict(A))
    assert run.score(A, y) == result.score(A, y) and run.score() == result.score()
    for fitted in (run, result):  # columns are found by their names
        moved = frame.assign(extra=1.0)[["z", "extra", "v", "u", "w"]]
        np.testing.assert_array_equal(fitted.predict(moved), fitted.predict(A))
        assert fitted.score(moved, y) == fitted.score(A, y)
        with pytest.raises(ValueError, match=r"A has 0 columns 'w', expected one, .*: u, v, w, z"):
            fitted.predict(frame.rename(columns={"w": "other"}))
        with pytest.raises(ValueError, match="score has no y"):
            fitted.score(A)
    held, labels = problem.held_out
    test = (pandas.DataFrame(held, columns=NAMES)[NAMES[::-1]], labels)
    again = load_problem((frame, y), 3, test=test, **options)
    np.testing.assert_array_equal(again.held_out[0], held)


@pytest.mark.serial
def test_a_file_without_a_model_or_rows_says_so(tmp_path):
    mpidec.solve(None, "consensus", "ring", steps=1, x0=A[:3], record=tmp_path / "mean.h5")
    with pytest.raises(ValueError, match="holds no linear model, expected the file of a run"):
        mpidec.record.read(tmp_path / "mean.h5").predict(A)
    problem = loaded(Y)

    def fail(k, steps, metrics):
        raise RuntimeError("killed")

    for trajectory in (True, False):
        record = mpidec.Record(tmp_path / f"{trajectory}.h5", trajectory=trajectory)
        with pytest.raises(RuntimeError, match="killed"):
            mpidec.solve(problem, "dgd", "ring", steps=9, record=record, progress=fail)
        run = mpidec.record.read(record.path)
        if trajectory:
            assert run.predict(A).shape == (90,)
        else:
            with pytest.raises(ValueError, match=r"no rows to predict with: the run is failed"):
                run.score(A, Y)
