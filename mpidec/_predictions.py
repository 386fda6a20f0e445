"""Predictions of linear models for samples as they were given: of problems, of results, and of run
files, which store what they need.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _validation as check
from ._complex import as_reals, double, doubled, from_reals, is_complex, squares
from ._sparse import (
    check_finite,
    column_sizes,
    is_sparse,
    matrix,
    restored_samples,
    samples_by_name,
    with_data,
    with_ones,
)
from ._validation import Array

if TYPE_CHECKING:
    from ._sparse import csr_array

# Of the held-out samples that a file stores at most, which is small without them.
TEST_BYTES = 4 << 20


@dataclass(frozen=True, eq=False)
class Scaling:
    """Shift and scale of each column, those of some samples: ``scaling(A)`` of these has mean 0
    and variance 1; or only the scale, which keeps sparse samples sparse: then, the largest
    modulus is 1.

    Parameters
    ----------
    powers : (d,) array of int
        Powers of 2 by which all is multiplied first; they leave no trace, and squares do not
        overflow.
    mean, deviation : (d,) arrays
        Of the columns then; the deviation of constant columns, which become 0, is 0.  Without a
        shift, means are 0, and deviations the largest moduli.

    Examples
    --------
    >>> scaling = Scaling.of(np.array([[1.0, 5.0], [3.0, 5.0]]))
    >>> scaling(np.array([[4.0, 6.0]]))
    array([[2., 0.]])
    """

    powers: NDArray[Any]
    mean: Array
    deviation: Array

    @classmethod
    def of(cls, A: Array | csr_array, how: bool | str = True) -> Scaling:
        """Return the scaling of the samples `A`, (N, d); with "scale", without a shift.

        Raises
        ------
        ValueError
            If sparse samples would be shifted.
        """
        if isinstance(how, str):
            check.choice(how, "standardize", ("scale",), more=", true or false")
        elif is_sparse(A):
            N, d = A.shape
            raise ValueError(
                "standardize=True subtracts the mean of every column, which makes the zeros of "
                f"sparse samples other numbers: {N} x {d} dense ones take {8e-9 * N * d:.2g} GB; "
                'standardize="scale" (--set problem.standardize=scale) only divides each column by '
                "its largest modulus"
            )
        sizes = column_sizes(A)
        if is_sparse(A) or how == "scale":
            return cls(np.zeros(len(sizes), int), np.zeros(len(sizes)), sizes)
        powers = -np.frexp(sizes)[1]
        A = _times(A, powers)
        mean = A.mean(axis=0)
        deviation: Array = np.sqrt(squares(A - mean).mean(axis=0))
        constant = deviation <= 1e-13 * np.abs(A).max(axis=0)
        return cls(powers, mean, np.where(constant, 0.0, deviation))

    @property
    def shifts(self) -> bool:
        """Whether a mean is subtracted."""
        return bool(np.any(self.mean))

    def __call__(self, A: Array | csr_array) -> Array | csr_array:
        """Return samples (N, d) with the columns shifted and scaled; the dtype is that of `A`.
        Sparse samples must not be shifted.
        """
        zero = self.deviation == 0
        factors = np.where(zero, 1.0, self.deviation)
        scaled = _times(A, self.powers)
        if is_sparse(A):
            data = np.where(zero[A.indices], 0.0, scaled.data / factors[A.indices])
            return with_data(A, data.astype(check.precision(A), copy=False))
        result: Array = np.where(zero, 0.0, (scaled - self.mean) / factors)
        return result.astype(check.precision(A), copy=False)


def _times(A: Array | csr_array, powers: NDArray[Any]) -> Array | csr_array:
    """`A` in double precision, its columns multiplied by powers of 2."""
    if is_sparse(A):
        return with_data(A, _times(A.data, powers[A.indices]))
    parts = np.ldexp(as_reals(double(A)), np.repeat(powers, 2) if is_complex(A) else powers)
    return from_reals(parts) if is_complex(A) else parts


@dataclass(frozen=True, eq=False)
class Given:
    """Transformation of raw samples and labels into those of a problem; see `load_problem`.

    Parameters
    ----------
    scaling : Scaling, optional
        Of the features.
    labels : (classes,) array, optional
        The labels as given, in the order of the problem's.
    test : (A, y), optional
        Held-out samples as given, with targets of the problem.
    notes : tuple of str
        How the file of the samples was read where it can be read in another way.
    names : tuple of str
        Those of the features; empty if they have none.
    omitted : int
        Bytes of held-out samples that a file has left out, being more than 4 MiB.
    """

    scaling: Scaling | None = None
    labels: NDArray[Any] | None = None
    test: tuple[Array | csr_array, Array] | None = None
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    omitted: int = 0


AS_THEY_ARE = Given()


@runtime_checkable
class Predicting(Protocol):
    """A problem whose unknowns are those of a model."""

    def predict(self, x: Array, A: ArrayLike) -> NDArray[Any]:
        """Return the targets that the model x predicts for samples, (d,), (N, features) -> (N,)."""

    def score(self, x: Array, A: ArrayLike, y: ArrayLike) -> float:
        """Return how well the model x predicts the targets y of samples A; at most 1."""


def decide(T: Array, labels: str) -> Array:
    """The targets that scores stand for, (N, c) -> (N,): "numbers", "signs" or "classes".

    Examples
    --------
    >>> decide(np.array([[2.0], [-1.0]]), "signs"), decide(np.array([[0.0, 1.0]]), "classes")
    (array([ 1., -1.]), array([1]))
    """
    if labels == "classes":
        return np.asarray(T.argmax(axis=1))
    return np.where(T[:, 0] > 0, 1.0, -1.0) if labels == "signs" else T[:, 0]


def names_of(A: object) -> tuple[str, ...]:
    """The names of the columns of a data frame, if all of them are texts; () of anything else.

    Examples
    --------
    >>> names_of(np.ones((2, 2)))
    ()
    """
    columns: Sequence[object] = getattr(A, "columns", ())
    return tuple(map(str, columns)) if all(isinstance(name, str) for name in columns) else ()


def ordered(names: Sequence[str], known: Sequence[str], what: str) -> list[int]:
    """The places of the `known` columns among those of `what`.

    Raises
    ------
    ValueError
        If one of them is missing, or is there twice.

    Examples
    --------
    >>> ordered(["v", "id", "u"], ["u", "v"], "A")
    [2, 0]
    """
    for name in known:
        if (count := names.count(name)) != 1:
            raise ValueError(
                f"{what} has {check.plural(count, 'column')} {name!r}, expected one, as the "
                f"samples before: {', '.join(known[:8])}{', ...' * (len(known) > 8)}"
            )
    return [names.index(name) for name in known]


@dataclass(frozen=True, eq=False)
class LinearPredictor:
    """A linear model, but for its unknowns x: what it predicts for samples as they were given.

    Parameters
    ----------
    labels : {"numbers", "signs", "classes"}
        The targets of the problem.
    features : int
        Their number, with that of the intercept.
    intercept : bool
        Whether the last one is a column of ones.
    complex_too : bool
        Whether samples may be complex.
    given : Given

    Examples
    --------
    >>> model = LinearPredictor("signs", 1, given=Given(labels=np.array(["ill", "well"])))
    >>> model.predict(np.array([2.0]), [[1.0], [-1.0]]).tolist()
    ['well', 'ill']
    """

    labels: str
    features: int
    intercept: bool = False
    complex_too: bool = False
    given: Given = AS_THEY_ARE

    def samples(self, A: ArrayLike | csr_array) -> Array | csr_array:
        """Return samples as given as those of the problem: the columns of a frame in their order,
        scaled, and with the intercept, whose column of ones may be left out.  Sparse ones remain
        sparse, unless they are shifted.
        """
        plain, scaling = self.features - self.intercept, self.given.scaling
        A = self._ordered(A)
        if is_sparse(A) and scaling is not None and scaling.shifts:
            A = A.toarray()
        as_numbers = matrix if is_sparse(A) else check.real
        values = as_numbers(A, "A", self.complex_too)
        if values.ndim != 2 or values.shape[1] not in (plain, self.features):
            raise ValueError(
                f"A has shape {values.shape}, expected (N, {plain}): one sample per row"
            )
        S = values[:, :plain].astype(doubled(values.dtype), copy=False)
        S = S if is_sparse(S) else np.ascontiguousarray(S)
        check_finite(S, "A")
        S = S if scaling is None else scaling(S)
        return with_ones(S) if self.intercept else S

    def _ordered(self, A: Any) -> Any:
        """The columns of a data frame that the model was fitted to, in their order; anything else
        as it is.
        """
        names, known = names_of(A), self.given.names
        if not names or not known or names == known:
            return A
        ordered(names, known, "A")
        return A[list(known)]

    def predict(self, x: Array, A: ArrayLike | csr_array) -> NDArray[Any]:
        """Return what the model `x` predicts: targets, or labels as given, (N, features) ->
        (N,).
        """
        found = decide(self.samples(A) @ x.reshape(self.features, -1), self.labels)
        names = self.given.labels
        return found if names is None else names[found.clip(min=0).astype(int)]

    def score(self, x: Array, A: ArrayLike | csr_array, y: ArrayLike) -> float:
        r"""Return the accuracy of `predict`, or the :math:`R^2` of targets that are no labels."""
        found, y = self.predict(x, A), np.asarray(y)
        if y.shape != found.shape or not y.size:
            raise ValueError(
                f"y has shape {y.shape}, expected {found.shape}: one target per sample, at least "
                "one"
            )
        if self.labels != "numbers":
            return float((found == _like(y, found)).mean())
        away, spread = squares(y - found).sum(), squares(y - y.mean()).sum()
        return float(1 - away / spread) if spread else float(away == 0)

    @property
    def held_out(self) -> tuple[Array | csr_array, NDArray[Any]] | None:
        """The held-out samples and their targets, or labels, as given; None without any."""
        if self.given.test is None:
            return None
        (A, y), names = self.given.test, self.given.labels
        if names is None:
            return A, y
        return A, names[((y + 1) / 2 if self.labels == "signs" else y).astype(int)]

    # -- in files ----------------------------------------------------------------------------------

    def stored(self) -> dict[str, NDArray[Any]]:
        """Arrays of numbers from which `restored` makes it: `about` is JSON in UTF-8; held-out
        samples of more than 4 MiB are left out.
        """
        given = self.given
        held = {} if given.test is None else samples_by_name("test_A", given.test[0])
        size = sum(part.nbytes for part in (*held.values(), *(given.test or ())[1:]))
        omitted = size if size > TEST_BYTES else given.omitted
        about = {
            "labels": self.labels,
            "features": self.features,
            "intercept": self.intercept,
            "complex": self.complex_too,
            "classes": None if given.labels is None else given.labels.tolist(),
            "names": given.names,
            "omitted": omitted,
        }
        found: dict[str, NDArray[Any]] = {
            "about": np.frombuffer(json.dumps(about).encode(), np.uint8)
        }
        if given.scaling is not None:
            found |= {f"scaling_{name}": part for name, part in vars(given.scaling).items()}
        if given.test is not None and not omitted:
            found |= {**held, "test_y": given.test[1]}
        return found

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> LinearPredictor:
        """The model of the arrays that `stored` has returned.

        Raises
        ------
        ValueError, KeyError
            If they are not of a model.

        Examples
        --------
        >>> LinearPredictor.restored(LinearPredictor("numbers", 3).stored()).features
        3
        """
        about = json.loads(arrays["about"].tobytes())
        parts = [arrays.get(f"scaling_{name}") for name in ("powers", "mean", "deviation")]
        scaling = Scaling(*parts) if all(part is not None for part in parts) else None  # type: ignore[arg-type]
        samples = restored_samples("test_A", arrays)
        test = None if samples is None else (samples, arrays["test_y"])
        classes = None if about["classes"] is None else np.array(about["classes"])
        omitted = about.get("omitted", 0)
        given = Given(scaling, classes, test, names=tuple(about["names"]), omitted=omitted)
        labels = check.choice(about["labels"], "labels", ("numbers", "signs", "classes"))
        return cls(labels, int(about["features"]), about["intercept"], about["complex"], given)


def _like(y: Array, found: Array) -> Array:
    """Convert given labels to text or numbers, as those of the training samples are."""
    text = y.dtype.kind in "OSU"
    if found.dtype.kind == "U" and not text:
        raise ValueError(f"y holds {y.dtype}, expected names of classes, such as {found[0]}")
    y = y.astype(str) if text else y
    return y.astype(float) if text and found.dtype.kind != "U" else y


def scored(
    model: Predicting,
    held_out: tuple[Array, NDArray[Any]] | None,
    x: Array,
    A: ArrayLike | None,
    y: ArrayLike | None,
) -> float:
    """The score of a model on samples, or on those held out if none are given.

    Raises
    ------
    ValueError
        If one of both is missing, or no samples were held out.
    """
    if A is None and y is None:
        if held_out is None:
            raise ValueError(
                "score() has no samples, and there are none held out: give them, score(A, y), or "
                "load the problem with some, load_problem(..., test=0.2)"
            )
        A, y = held_out
    if A is None or y is None:
        raise ValueError(
            f"score has no {'A' if A is None else 'y'}: expected samples and their targets, "
            "score(A, y), or none of both, for the samples held out"
        )
    return model.score(x, A, y)
