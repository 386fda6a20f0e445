"""Data sets: real ones from scikit-learn, a synthetic one, and user files."""

from __future__ import annotations

import importlib.util
import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _validation as check
from .._complex import double, is_complex
from .._predictions import Scaling, names_of
from .._sparse import check_finite, is_sparse, matrix
from .._validation import Array
from ..plugins import Components
from . import readers

if TYPE_CHECKING:
    from .._sparse import csr_array


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and targets of all agents together.

    Parameters
    ----------
    A : (N, d) array, or csr_array
        One sample per row, float32 or float64: the dtype of all iterates of the problem.
    y : (N,) array
        Targets, or class labels as given; class names are numbered in alphabetical order.
    name : str
        Name of the data set, or path of the file.
    kind : {"classification", "regression"}
        Type of the targets, as a hint. For files it is a guess: "classification" if the targets are
        integers with at most 20 distinct values and are not named ``b``.
    partition : str
        Default partition of the data set.
    x_star : (d,) array, optional
        Minimizer of the least squares problem, if it is known by construction.
    classes : tuple of str
        Names of the classes 0, 1, ... if the labels are names; otherwise empty.
    hint : str
        What may be wrong with the choice of the label; otherwise empty.
    label : str
        What a file calls the label: the column of a table; otherwise empty.
    notes : tuple of str
        How a file was read where it can be read in another way, a sentence each.
    names : tuple of str
        Those of the features; empty if they have none.
    sparse : bool
        Whether features that are zero are left out, as in LIBSVM files: two of one data set may
        have other numbers of features.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import Dataset, build, partition
    >>> data = Dataset(np.eye(4), np.array([0, 0, 1, 1]), "mine", "classification")
    >>> build("logistic", data, partition(data.y, 2, "sorted"), 0, 2).y
    array([[-1., -1.],
           [ 1.,  1.]])
    """

    A: Array | csr_array
    y: Array
    name: str
    kind: str
    partition: str = "iid"
    x_star: Array | None = None
    classes: tuple[str, ...] = ()
    hint: str = ""
    label: str = ""
    notes: tuple[str, ...] = ()
    sparse: bool = False
    names: tuple[str, ...] = ()


def load(
    source: str | os.PathLike[str],
    *,
    standardize: bool | str = False,
    label: str | int | None = None,
    features: int | None = None,
    **options: Any,
) -> Dataset:
    """Return a data set, given by its name or by the path of a file; see also :func:`load_problem`.

    Parameters
    ----------
    source : str or path
        ``breast_cancer``, ``digits``, ``diabetes``, ``synthetic_least_squares``; or a file:
        ``.npz`` with arrays ``A`` (N, d) and ``y`` or ``b`` (N,); a table of values separated by
        commas, semicolons, tabs or blanks (``.csv``, ``.tsv``, ``.data``), with or without a
        header: the label is the column named label, target, class, outcome, or, if it is the first
        or the last one, y or b; otherwise the last one; or LIBSVM (``.svm``, ``.libsvm``; indices
        from 1, or from 0 if 0 occurs). With another extension or none (``a1a``, ``w8a.t``,
        ``mine.txt``) the content decides, and ``.gz``, ``.bz2`` and ``.xz`` are decompressed.
        Labels may be class names, except in LIBSVM files.  These stay sparse if less than a tenth
        of their entries are not zero: `A` is then a csr_array.
    standardize : bool or "scale"
        Whether every feature is shifted and scaled to mean 0 and variance 1 over all samples
        (targets are unchanged); with "scale", only to largest modulus 1, so that zeros remain.
        Sparse samples refuse a shift.
    label : str or int, optional
        The label of a file: name or number of a column of a table (from 0, or from the end if
        negative), or name of an array of an .npz file.
    features : int, optional
        Number of features of a LIBSVM file, by default its largest index.
    **options
        Parameters of the synthetic data set: ``n, p, d, heterogeneity, seed``.

    Raises
    ------
    ValueError
        If the name is unknown, or the file is missing, empty or malformed; the message names the
        file and the line or row.

    Notes
    -----
    Nothing is communicated: the calling process reads the whole data set. Pickles are never loaded.

    Examples
    --------
    >>> from mpidec.problems import load
    >>> data = load("synthetic_least_squares", n=4, p=5, d=3)
    >>> data.A.shape, data.kind
    ((20, 3), 'regression')
    """
    result = loaded(source, label, features, **options)
    for note in result.notes:
        warnings.warn(f"data {result.name}: {note}", UserWarning, stacklevel=2)
    if not standardize:
        return result
    return replace(result, A=Scaling.of(result.A, standardize)(result.A), x_star=None)


def loaded(
    source: str | os.PathLike[str],
    label: str | int | None = None,
    features: int | None = None,
    **options: Any,
) -> Dataset:
    """Return what `load` returns, without warnings on how a file was read."""
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            f"data = {source!r} is a {type(source).__name__}, expected a name or a path"
        )
    name = os.fspath(source)
    if not isinstance(name, str):
        raise TypeError(f"data = {name!r} is a {type(name).__name__}, expected a name or a path")
    if (make := maker(name)) is not None:
        if features is not None:
            raise ValueError(
                f"data set {name} has its features, but features = {features} was given (it is for "
                "LIBSVM files)"
            )
        result = _made(name, make, label, options)
    else:
        if options:
            raise ValueError(
                f"{name} takes no parameters, but {', '.join(options)} was given "
                "(only synthetic data sets have parameters)"
            )
        read = readers.read(Path(name), label, features)
        try:
            kind = "regression" if read.label == "b" else None
            made = dataset(read.A, read.y, name, kind, read.label)
            result = replace(
                made, hint=read.hint, notes=read.notes, sparse=read.sparse, names=read.names
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from None
    return result


def maker(name: str) -> Callable[..., Any] | None:
    """Return the function that makes a data set, of the package or of a plug-in, by its name; None
    for the path of a file.

    An object in a plug-in counts as a function without parameters.

    Raises
    ------
    ValueError
        If `name` is neither; the message says that a path works, too.

    Examples
    --------
    >>> maker("digits").__name__, maker("mine.csv")
    ('digits', None)
    """
    if DATA_TABLE.knows(name):
        thing = DATA_TABLE.find(name)
        return thing if callable(thing) else lambda: thing
    if os.path.splitext(name)[1] or os.sep in name or os.path.exists(name):
        return None
    hint = check.did_you_mean(name, DATA_TABLE, cutoff=0.7)
    raise ValueError(
        f"unknown data set {name!r}: {hint}{hint and ' '}expected one of {', '.join(DATA_TABLE)}, "
        "or the path of a "
        f"file: {' '.join(readers.READERS)}"
    )


def _made(
    name: str, make: Callable[..., Any], label: str | int | None, options: Mapping[str, Any]
) -> Dataset:
    """Return the data set that a function of the package or of the user makes."""
    known = list(inspect.signature(make).parameters)
    for option in options:
        if not known:
            raise ValueError(f"data set {name} takes no parameters, but {option} was given")
        check.known_name(option, known, f"parameter of data set {name}")
    if label is not None:
        raise ValueError(
            f"data set {name} has its labels, but label = {label!r} was given (it chooses a column "
            "of a file)"
        )
    try:
        made = make(**options)
    except (ValueError, TypeError, OSError) as error:
        if name in DATASETS:
            raise
        raise ValueError(f"data set {name}: {error}") from error
    if isinstance(made, Dataset):
        return made
    if not isinstance(made, tuple) or len(made) != 2:
        raise ValueError(
            f"data set {name} is a {type(made).__name__}, expected (A, y) or a Dataset"
        )
    return dataset(*made, name=name)


def dataset(
    A: ArrayLike | csr_array,
    y: ArrayLike,
    name: str = "arrays",
    kind: str | None = None,
    label: str = "",
) -> Dataset:
    """Return the data set of two arrays, checked; labels may be class names.

    Parameters
    ----------
    A : (N, d) array_like or scipy.sparse matrix
        One sample per row; float32 stays so, all else becomes float64; a sparse matrix stays
        sparse.
    y : (N,) array_like
        Targets or labels.
    name : str
        Name of the data set, for messages.
    kind : {"classification", "regression"}, optional
        Type of the targets; by default it is guessed as for files.
    label : str
        Name of the targets, for messages.

    Raises
    ------
    ValueError, TypeError
        If shapes do not match, or a value is not a finite number.

    Examples
    --------
    >>> from mpidec.problems import dataset
    >>> data = dataset([[0.0], [1.0], [2.0]], ["ill", "well", "ill"])
    >>> data.y, data.classes, data.kind
    (array([0., 1., 0.]), ('ill', 'well'), 'classification')
    """
    _check_index(A, y, label or "y")
    names = names_of(A)
    A = matrix(A, "A", True) if is_sparse(A) else check.real(_numbers(A), "A", complex_too=True)
    if A.ndim == 3:
        raise ValueError(
            f"A has shape {A.shape}, expected (N, d): samples that are split over the agents "
            "already go straight "
            "into a problem: problems.LeastSquares(A, b)"
        )
    if A.ndim != 2 or 0 in A.shape:
        raise ValueError(
            f"A has shape {A.shape}, expected (N, d): one sample per row, at least one sample and "
            "one feature"
        )
    called = label or "y"
    labels, classes = _labels(np.asarray(check.unmasked(y, called)))
    labels = check.real(labels, called, complex_too=True)
    if labels.shape != A.shape[:1]:
        flat = " (np.ravel(y))" if labels.size == A.shape[0] else ""
        raise ValueError(
            f"{called} has shape {labels.shape}, expected ({A.shape[0]},): one target per row of A "
            f"{A.shape}{flat}"
        )
    targets = np.ascontiguousarray(double(labels))
    if not is_sparse(A):
        A = np.ascontiguousarray(A, dtype=check.precision(A))
    check_finite(A, "A")
    check.finite(targets, called, ("row",))
    kind = kind or ("classification" if classes else _kind(targets))
    return Dataset(A, targets, name, kind, classes=classes, label=label, names=names)


def _labels(y: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Targets as numbers, and the names of their classes if they are no numbers as text."""
    texts = y.dtype.kind in "OUS" and all(isinstance(one, (str, bytes)) for one in y.flat)
    if not (texts and y.size):
        return y, ()
    try:
        return y.astype(str).astype(float), ()
    except ValueError:
        values, numbers = np.unique(y.astype(str), return_inverse=True)
        return numbers.reshape(y.shape), tuple(map(str, values))


def _check_index(A: Any, y: Any, name: str) -> None:
    """Refuse a data frame and targets whose rows have other labels."""
    if hasattr(A, "iloc") and hasattr(y, "iloc") and not A.index.equals(y.index):
        raise ValueError(
            f"{name} and A have other indices, so that their rows may not belong together: align "
            f"them ({name}.loc[A.index]), or drop them (.reset_index(drop=True))"
        )


def _numbers(A: Any) -> Any:
    """Return the numbers of a data frame whose columns differ in type, such as bools beside floats;
    anything else as it is.
    """
    columns = getattr(A, "columns", None)
    if columns is None or np.asarray(A).dtype.kind != "O":
        return A
    numbers = []
    for name in columns:
        column = A[name]
        try:
            if np.asarray(column).dtype.kind in "mM":  # dates would become nanoseconds
                raise TypeError
            numbers.append(column.to_numpy(dtype=float, na_value=np.nan))
        except (TypeError, ValueError):
            raise TypeError(
                f"A: the column {name!r} has dtype {column.dtype}, expected real numbers: leave it "
                "out, or encode it (pandas.get_dummies)"
            ) from None
    return np.stack(numbers, axis=1)


def _kind(y: Array) -> str:
    return (
        "classification"
        if not is_complex(y) and (y == np.floor(y)).all() and len(np.unique(y)) <= 20
        else "regression"
    )


def standardized(A: Array) -> Array:
    """Return `A` (N, d) with every column shifted and scaled to mean 0 and variance 1 (constant
    columns become 0).

    The dtype is that of `A`; sums are taken in float64.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import standardized
    >>> standardized(np.array([[1.0, 5.0], [3.0, 5.0]]))
    array([[-1.,  0.],
           [ 1.,  0.]])
    """
    check.unmasked(A, "A")
    return np.asarray(Scaling.of(A)(A))


def _distinct_labels(y: ArrayLike) -> tuple[NDArray[Any], NDArray[np.intp]]:
    y = np.asarray(check.unmasked(y, "y"))
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        s = int(np.isfinite(y).ravel().argmin())
        raise ValueError(f"y is {y.flat[s]} at sample {s}, expected finite labels")
    values, numbers = np.unique(y, return_inverse=True)
    return values, numbers.reshape(y.shape)


def signs(y: ArrayLike) -> Array:
    """Convert labels of any two values to -1 (the smaller value) and +1 (the larger), for logistic
    regression.

    Raises
    ------
    ValueError
        If the labels do not take exactly two values (a single value of -1 or +1 is accepted), or
        are not finite.

    Examples
    --------
    >>> from mpidec.problems import signs
    >>> signs([1, 2, 2])
    array([-1.,  1.,  1.])
    """
    values, numbers = _distinct_labels(y)
    if len(values) == 1 and values[0] in (-1, 1):
        return check.floats(y, "y")
    if len(values) != 2:
        shown = (
            check.some(values) if values.dtype.kind in "biuf" else ", ".join(map(str, values[:5]))
        )
        raise ValueError(
            f"logistic regression needs two different labels, got {len(values)}: {shown} (use "
            "softmax for "
            "more classes, least_squares or huber for regression)"
        )
    return np.where(numbers == 0, -1.0, 1.0)


def class_numbers(y: ArrayLike) -> NDArray[np.intp]:
    """Convert labels of any values to class numbers 0, 1, 2, ... in ascending order, for Softmax.

    Examples
    --------
    >>> from mpidec.problems import class_numbers
    >>> class_numbers([3, 7, 3, 9])
    array([0, 1, 0, 2])
    """
    return _distinct_labels(y)[1]


def _last_column(path: Path, heading: int) -> tuple[Array, Array]:
    """Return samples and targets, the last column below so many lines."""
    rows = np.loadtxt(path, delimiter=",", skiprows=heading)
    return rows[:, :-1], rows[:, -1]


def _scaled(data: Path, target: Path) -> tuple[Array, Array]:
    """Return samples, with features of mean 0 and sum of squares 1, and targets."""
    A = np.loadtxt(data)
    return (A - A.mean(axis=0)) / A.std(axis=0) / len(A) ** 0.5, np.loadtxt(target)


TABLES: dict[str, Callable[[Path], tuple[Array, Array]]] = {
    "breast_cancer": lambda folder: _last_column(folder / "breast_cancer.csv", 1),
    "digits": lambda folder: _last_column(folder / "digits.csv.gz", 0),
    "diabetes": lambda folder: _scaled(
        folder / "diabetes_data_raw.csv.gz", folder / "diabetes_target.csv.gz"
    ),
}
"""Readers of the data sets in the folder of scikit-learn."""


def from_sklearn(name: str) -> tuple[Array, Array]:
    """Return samples and targets of a data set that comes with scikit-learn.

    Only the files are read, if they are there: an import of scikit-learn takes each rank longer
    than a short run.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise ValueError(
            f"data set {name} comes with scikit-learn, which is not installed: pip install "
            "scikit-learn, "
            "or give a file such as data/breast_cancer.csv"
        )
    try:
        A, y = TABLES[name](Path(package.origin).parent / "datasets" / "data")
    except (LookupError, FileNotFoundError):
        from sklearn import datasets

        A, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return np.ascontiguousarray(A, dtype=np.float64), np.ascontiguousarray(y, dtype=np.float64)


def breast_cancer() -> Dataset:
    """Breast cancer: 569 samples, 30 standardized features, no intercept; labels -1 (malignant) and
    +1 (benign).

    Examples
    --------
    >>> from mpidec.problems import breast_cancer
    >>> breast_cancer().A.shape
    (569, 30)
    """
    A, y = from_sklearn("breast_cancer")
    return Dataset(standardized(A), signs(y), "breast_cancer", "classification", "sorted")


def digits() -> Dataset:
    """Handwritten digits: 1797 images of 8 x 8 pixels scaled to [0, 1], no intercept; classes 0..9.

    Examples
    --------
    >>> from mpidec.problems import digits
    >>> digits().A.shape
    (1797, 64)
    """
    A, y = from_sklearn("digits")
    return Dataset(A / 16, y, "digits", "classification", "sorted")


def diabetes() -> Dataset:
    """Diabetes progression: 442 patients, 10 features; features and target standardized, no
    intercept.

    Examples
    --------
    >>> from mpidec.problems import diabetes
    >>> diabetes().A.shape
    (442, 10)
    """
    A, y = from_sklearn("diabetes")
    return Dataset(
        standardized(A), standardized(y[:, None])[:, 0], "diabetes", "regression", "sorted"
    )


def synthetic_least_squares(
    n: int = 16, p: int = 20, d: int = 10, heterogeneity: float = 1.0, seed: int = 0
) -> Dataset:
    r"""Gaussian least squares with adjustable heterogeneity: p samples of d features for each of n
    agents.

    The rows of :math:`A_i` are :math:`N(0, I/p)`, :math:`x^\star` is a random unit vector, and

    .. math:: b_i = A_i (x^\star + s\, \delta_i), \qquad \delta_i \sim N(0, I), \qquad
              \text{shifted so that } \sum_i A_i^T A_i \delta_i = 0,

    so that :math:`x^\star` minimizes :math:`\sum_i \frac12 \|A_i x - b_i\|^2` exactly and
    :math:`x^\star + s \delta_i` minimizes the function of agent i. The scale s is chosen so that

    .. math:: \zeta^2 = \frac1n \sum_i \|\nabla f_i(x^\star)\|^2 = \texttt{heterogeneity}.

    With 0, all agents share the minimizer. A single agent is never heterogeneous.

    Parameters
    ----------
    n, p, d : int
        Agents, samples per agent, features.
    heterogeneity : float
        :math:`\zeta^2 \ge 0`.
    seed : int
        Agent i's samples are drawn from ``default_rng([seed, i])``.

    Returns
    -------
    Dataset
        n p samples, agent by agent (partition "blocks"), with `x_star`.

    Examples
    --------
    >>> from mpidec.problems import synthetic_least_squares
    >>> data = synthetic_least_squares(n=4, p=5, d=3, heterogeneity=0)
    >>> bool(abs(data.A @ data.x_star - data.y).max() < 1e-15)
    True

    References
    ----------
    The construction follows T. Vogels et al., "RelaySum for decentralized deep learning on
    heterogeneous data", NeurIPS 2021, app. B.4 (random quadratics), with :math:`\zeta^2` in closed
    form.
    """
    n, p, d = check.integer(n, "n"), check.integer(p, "p"), check.integer(d, "d")
    zeta2 = check.number(heterogeneity, "heterogeneity", least=0)
    seed = check.integer(seed, "seed", least=0)
    A, delta = np.empty((n, p, d)), np.empty((n, d))
    for i in range(n):
        random = np.random.default_rng([seed, i])
        A[i] = random.standard_normal((p, d)) / np.sqrt(p)
        delta[i] = random.standard_normal(d)
    x_star = np.random.default_rng([seed, 0, 1]).standard_normal(d)
    x_star /= np.linalg.norm(x_star)
    H = A.transpose(0, 2, 1) @ A
    delta -= np.linalg.lstsq(H.sum(axis=0), np.einsum("ide,ie->d", H, delta), rcond=None)[0]
    spread = float((np.einsum("ide,ie->id", H, delta) ** 2).sum() / n)
    s = np.sqrt(zeta2 / spread) if n > 1 and spread > 0 else 0.0
    b = np.einsum("ipd,id->ip", A, x_star + s * delta)
    return Dataset(
        A.reshape(n * p, d), b.ravel(), "synthetic_least_squares", "regression", "blocks", x_star
    )


DATASETS: dict[str, Callable[..., Dataset]] = {
    make.__name__: make for make in (breast_cancer, digits, diabetes, synthetic_least_squares)
}


def _data_set(thing: object) -> str | None:
    """Return what is wrong with `thing` as a data set, or None: a function that returns it, or
    the data set itself.
    """
    if isinstance(thing, (Dataset, tuple)) or (callable(thing) and not inspect.isclass(thing)):
        return None
    kind = "a class" if inspect.isclass(thing) else f"an object of type {type(thing).__name__}"
    return f"{kind}, expected a function that returns (A, y) or a Dataset"


DATA_TABLE = Components("data set", "mpidec.datasets", DATASETS, _data_set)
