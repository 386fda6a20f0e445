"""From data to a problem in one call: load, standardize, partition, build, and compute the
solution.
"""

from __future__ import annotations

import inspect
import os
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _validation as check
from .._complex import double, squares
from .._predictions import AS_THEY_ARE, Given, Scaling, ordered
from .._sparse import (
    Samples,
    SparseSamples,
    alike,
    column_sizes,
    is_sparse,
    widened,
    with_ones,
)
from .._validation import Array
from ..datasets import FROM_0, Dataset, dataset, loaded, maker, partition as split
from ..protocols import Agents
from . import registry, terms
from .base import LinearModel, Problem
from .members import is_sampled, solution_of, targets_of, x_star_of
from .minimizer import minimizer
from .registry import ProblemSpec, problem_spec

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SCALES = ("sum", "mean")
PENALTIES = ("l2", "l2_total", "l1", "l1_total", "lower", "upper", "simplex")
WITH_DATA = (
    *("partition", "alpha", "per_agent", "label", "features", "standardize", "intercept"),
    *("scale", "test"),
)
TEST = 1  # beside the seed: the draw of a test set
# Ratio of column sizes that is worth a hint.
UNEVEN = 1e3
# entries of data: their fourth power, times their number, is a float64, and their square a float32
LARGEST = {
    "float64": 1e70,
    "float32": 1e15,
}


TestSet = float | str | os.PathLike[str] | tuple[ArrayLike, ArrayLike] | Dataset | None


@dataclass(frozen=True)
class DataOptions:
    """How a data set becomes the functions of the agents; see `load_problem`.

    `data_seed` is the seed of a data set or problem that takes one, by default `seed`.

    Examples
    --------
    >>> DataOptions(l1=0.5, lower=0).penalties
    {'l1': 0.5, 'lower': 0}
    """

    partition: str | None = None
    alpha: float | None = None
    per_agent: int | None = None
    seed: int = 0
    standardize: bool | str = False
    intercept: bool = False
    label: str | int | None = None
    features: int | None = None
    scale: str = "sum"
    l2: float | None = None
    l2_total: float | None = None
    l1: float | None = None
    l1_total: float | None = None
    lower: float | None = None
    upper: float | None = None
    simplex: float | None = None
    data_seed: int | None = None
    test: TestSet = None

    @property
    def drawn(self) -> int:
        """The seed of a data set or problem that takes one."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def penalties(self) -> dict[str, float]:
        """The ridge and the parts of the term that are given, by name."""
        return {name: value for name in PENALTIES if (value := vars(self)[name]) is not None}


@dataclass(frozen=True, eq=False)
class Prepared:
    """The problem of all n agents, and the pieces from which any of them can be built.

    Parameters
    ----------
    whole : Problem
        All agents.
    spec : ProblemSpec
        What builds it.
    options : dict
        Arguments of `spec.make`, by name.
    arrays : (A, y, mask), or None
        Data of all agents; None for a problem that is made from the numbers of the agents.
    x_star : (d,) array, or None
        Minimizer of the average.
    note : str
        Why there is no `x_star`, otherwise empty.
    partition : str
        The kind of partition; empty without data.
    samples : int
        Number of samples of all agents.
    classes : tuple of str
        Names of the classes, if the labels are names.
    label : str
        What the file calls the label; otherwise empty.
    given : Given
        How samples and labels became those of the problem, and the test set.
    """

    whole: Problem
    spec: ProblemSpec
    options: dict[str, Any]
    arrays: tuple[Samples, Array, registry.Mask] | None
    x_star: Array | None
    note: str
    partition: str
    samples: int
    classes: tuple[str, ...] = ()
    label: str = ""
    given: Given = AS_THEY_ARE


def load_problem(
    data: object = None,
    n: int | None = None,
    problem: str | Callable[..., Problem] | None = None,
    *,
    net: Agents | None = None,
    lo: int | None = None,
    hi: int | None = None,
    partition: str | None = None,
    alpha: float | None = None,
    per_agent: int | None = None,
    seed: int = 0,
    standardize: bool | str = False,
    intercept: bool = False,
    label: str | int | None = None,
    features: int | None = None,
    scale: str = "sum",
    l2: float | None = None,
    l2_total: float | None = None,
    l1: float | None = None,
    l1_total: float | None = None,
    lower: float | None = None,
    upper: float | None = None,
    simplex: float | None = None,
    test: TestSet = None,
    **params: Any,
) -> Problem:
    r"""Return the problem of the local agents on a data set, with its solution as `x_star`.

    .. math::
        \text{sum}:\;  f_i(x) &= \textstyle\sum_{s \in S_i} \ell_s(x) + \tfrac{\lambda_2}{2} \|x\|^2 + \lambda_1 \|x\|_1, \\
        \text{mean}:\; f_i(x) &= \tfrac{n}{N} \textstyle\sum_{s \in S_i} \ell_s(x) + \tfrac{\lambda_2}{2} \|x\|^2
                                 + \lambda_1 \|x\|_1,

    for N samples in all. Everything minimizes the average :math:`f = \frac1n \sum_i f_i`: with
    "mean", its loss is the mean over all samples, and a given :math:`\lambda_2` means the same
    problem for every n; with "sum" (the default), n agents together have n times :math:`\lambda_2`,
    so a given `l2` means another problem for another n, but a given `l2_total` does not.

    Parameters
    ----------
    data : str, path, (A, y), Dataset or Bunch
        Name of a data set, a file (see :func:`load`), arrays A (N, d) and y (N,), ``FILE.py:NAME``
        of a function that returns them, or a data set of scikit-learn. Labels may be names of
        classes. None for a problem that needs no data. A sparse matrix of scipy as A stays sparse,
        and so does a LIBSVM file of which less than a tenth is not zero: no dense array of samples
        is made, except for functions that return a problem and take arrays.
    n : int
        Number of agents; by default that of `net`.
    problem : str, class or function, optional
        ``least_squares``, ``logistic``, ``softmax``, ``huber``, ``FILE.py:NAME``, a class derived
        from LinearModel, or a function of the local agents' arrays A (m, p, d) and y (m, p) (and
        `mask`, if they have different numbers of samples) that returns a problem, such as Custom;
        or one whose first parameter is `agents`, their numbers. By default ``logistic`` for two
        classes, ``softmax`` for more, and ``least_squares`` otherwise.
    net : Network, optional
        Rank 0 loads the data, and each rank receives the rows of its own agents; collective.
        Other ranks may pass None for arrays; those that they pass have to be the same. Without it,
        every process loads the data.
    lo, hi : int, optional
        Agents lo..hi-1 only, without a network; by default all n.
    partition : {"iid", "stratified", "sorted", "shards", "labels", "dirichlet", "sizes", "blocks"}, optional
        By default that of the data set; ``iid`` for files and arrays.
    alpha, per_agent, seed
        Concentration of ``dirichlet`` and ``sizes`` (by default 1), number of ``shards`` or
        ``labels`` of each agent (2), both refused with other partitions, and seed of the partition
        (see :func:`partition`) and of a synthetic data set.
    standardize : bool or "scale"
        Whether features are shifted and scaled to mean 0 and variance 1; with "scale", only to
        largest modulus 1, so that zeros remain. Sparse samples refuse a shift.
    intercept : bool
        Whether a column of ones is appended, which no penalty and no constraint concerns.
    label : str or int, optional
        Column of the label in a file; see :func:`load`.
    features : int, optional
        Number of features of a LIBSVM file, by default its largest index, or that of the test file.
    scale : {"sum", "mean"}
        Scale of the costs, see above.
    l2, l1 : float, optional
        :math:`\lambda_2` and :math:`\lambda_1` of every agent.
    l2_total, l1_total : float, optional
        The same relative to the sum of the losses of all samples, for any n and either scale: 1 / C
        of scikit-learn. By default 16 for ``l2_total`` of ``logistic`` and ``softmax``, otherwise
        0.
    lower, upper : float, optional
        Bounds of every unknown.
    simplex : float, optional
        Sum of the unknowns, which are then >= 0.
    test : float, path, or (A, y), optional
        Held-out samples: a share of the data, drawn with `seed` and with the classes in the same
        proportions, or others. Runs record the mean loss `test_loss` of them, and the `accuracy`
        of labels, as the average over the agents' models. ``standardize`` uses the training
        samples.
    **params
        Other parameters of the problem (``delta``, ``classes``) and of a synthetic data set.

    Returns
    -------
    Problem
        With the number of all agents as `n`. `x_star` is None, after a warning, if there is no
        finite minimizer.

    Raises
    ------
    ValueError, TypeError
        On every rank: an unknown name, a malformed file, or an argument out of range.

    Notes
    -----
    The command line builds its problems by the same code: ``mpidec.run`` and Python give the same
    bits.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> from mpidec.problems import load_problem
    >>> problem = load_problem("synthetic_least_squares", n=4)
    >>> problem.m, problem.d, float(np.linalg.norm(problem.x_star).round(9))
    (4, 10, 1.0)
    >>> load_problem((np.eye(4), ["ill", "well", "well", "ill"]), n=2, l2_total=1.0).l2
    0.5

    Each rank with its own agents:

    >>> with mpidec.Network(4) as net:
    ...     problem = load_problem("synthetic_least_squares", net=net)
    """
    options = DataOptions(
        partition=partition,
        alpha=alpha,
        per_agent=per_agent,
        seed=seed,
        standardize=standardize,
        intercept=intercept,
        label=label,
        features=features,
        scale=scale,
        l2=l2,
        l2_total=l2_total,
        l1=l1,
        l1_total=l1_total,
        lower=lower,
        upper=upper,
        simplex=simplex,
        test=test,
    )
    if net is None:
        if n is None:
            raise TypeError(
                "load_problem needs n, the number of agents (load_problem(data, n=16)), or net=, a "
                "Network"
            )
        prepared = prepare(data, check.integer(n, "n"), problem, options, **params)
        _warn(prepared.note)
        return local(prepared, 0 if lo is None else lo, prepared.whole.m if hi is None else hi)
    made, error = None, None
    try:
        if n is not None and n != net.n:
            raise ValueError(
                f"n = {n}, but the network has {net.n} agents, expected one of n and net"
            )
        if lo is not None or hi is not None:
            raise ValueError(
                "lo and hi with net: the network knows the local agents, expected one of them"
            )
        made = prepare(data, net.n, problem, options, **params) if net.rank == 0 else None
    except Exception as caught:  # raised on all ranks
        error = caught
    net.agree(error)
    settings = {name: value for name, value in vars(options).items() if name != "test"}
    _check_equal(data, {**settings, **params}, net)
    if made is not None:
        _warn(made.note)
    return scattered(made, problem, net)


def _check_equal(data: object, settings: Mapping[str, object], net: Agents) -> None:
    """Refuse arrays and settings that differ from those of rank 0; collective.

    Raises
    ------
    ValueError
    """
    pair = data if isinstance(data, (tuple, list)) and len(data) == 2 else ()
    pair = () if all(part is None for part in pair) else pair
    mine = [_crc(part) for part in pair]
    words = {name: f"{value!r:.200}" for name, value in settings.items()}
    samples, known = net.collectives.broadcast((mine, words), 0, "the data")
    name = next((name for name in words if words[name] != known.get(name)), None)
    error = None
    if pair and mine != samples:
        error = ValueError(
            f"rank {net.rank} passes other samples than rank 0: draw them with a seed "
            "(np.random.default_rng(0)), or pass data=None on the other ranks"
        )
    elif name is not None:
        error = ValueError(
            f"rank {net.rank} passes other settings than rank 0: {name} is {words[name]}, there "
            f"{known.get(name, 'not given')}; every rank must pass the same"
        )
    net.agree(error)


def _crc(part: object) -> int:
    """Return a checksum of an array of numbers or names, to be compared between ranks."""
    if is_sparse(part):
        entries = part.tocoo()
        arrays = (entries.data, *entries.coords)
        return zlib.crc32(b"".join(np.asarray(a).tobytes() for a in arrays))
    array = np.asarray(part)
    return zlib.crc32((array.astype(str) if array.dtype.hasobject else array).tobytes())


def _warn(note: str) -> None:
    if note:
        warnings.warn(note, UserWarning, stacklevel=3)


def prepare(
    data: object,
    n: int,
    problem: str | Callable[..., Problem] | None = None,
    options: DataOptions | None = None,
    **params: Any,
) -> Prepared:
    """Return the problem of all n agents with its solution; the arguments are those of
    :func:`load_problem`.

    Examples
    --------
    >>> from mpidec.problems.loading import prepare
    >>> made = prepare("synthetic_least_squares", 4, p=5)
    >>> made.samples, made.partition, made.whole.m
    (20, 'blocks', 4)
    """
    wanted = options or DataOptions()
    check.choice(wanted.scale, "scale", SCALES)
    spec = None if problem is None else problem_spec(problem)
    own = {} if spec is None else spec.parameters
    if "seed" in own:
        params["seed"] = wanted.drawn
    if spec is not None and not spec.takes_data:
        return _without_data(data, n, spec, wanted, params)
    if data is None:
        data = _usual_data(problem)
    of_data = _parameters(data)
    if spec is not None:
        _check_names(params, spec, of_data)
    # A parameter that problem and data set share is the problem's; the others make the data set.
    chosen = {name: value for name, value in params.items() if name not in own}
    made_with = {"n": n, "seed": wanted.drawn, **chosen}
    raw, test = _held_out(_data(data, wanted.label, of_data, made_with, wanted.features), wanted)
    whole_set, scaling = _standardized(raw, wanted.standardize)
    if spec is None:
        spec = problem_spec(registry.default_problem(whole_set))
        _check_names(params, spec, of_data)
        _warn(whole_set.hint and f"data {whole_set.name}: {whole_set.hint}")
    prepared = _with_data(whole_set, n, spec, wanted, params, of_data)
    for note in [*_notes(raw, test), "" if scaling else _uneven(whole_set)]:
        _warn(note)
    return _with_test(prepared, scaling, raw, test)


def _standardized(data: Dataset, how: bool | str) -> tuple[Dataset, Scaling | None]:
    """Return the training samples, scaled if that is asked for, and how: by themselves alone, since
    the test set must not influence the model.
    """
    scaling = Scaling.of(data.A, how) if how else None
    whole_set = data if scaling is None else replace(data, A=scaling(data.A), x_star=None)
    _check_size(whole_set)
    return whole_set, scaling


def _with_test(
    prepared: Prepared, scaling: Scaling | None, data: Dataset, test: Dataset | None
) -> Prepared:
    """Return a problem that knows its data as given, and the test set if there is one."""
    if isinstance(prepared.whole, LinearModel):
        return replace(prepared, given=_given(prepared.whole, scaling, data, test))
    if test is not None:
        raise ValueError(
            f"test is given, but {prepared.spec.name} predicts nothing, expected a class derived "
            "from problems.LinearModel"
        )
    return prepared


def _notes(*sets: Dataset | None) -> Iterable[str]:
    """What has been noted of the data sets, each once."""
    found = [f"data {one.name}: {note}" for one in sets if one is not None for note in one.notes]
    return dict.fromkeys(found)


def _usual_data(problem: object) -> str:
    """Return the name of the data set that a problem of the package uses if none is given."""
    name = registry.PROBLEM_TABLE.key(problem) if isinstance(problem, str) else ""
    if name not in registry.PROBLEMS:
        raise ValueError(
            "data is missing: give a data set, a file or arrays (A, y) (--data on the command line)"
        )
    return registry.default_dataset(name)


def _with_data(
    whole_set: Dataset,
    n: int,
    spec: ProblemSpec,
    wanted: DataOptions,
    params: Mapping[str, Any],
    of_data: tuple[str, ...],
) -> Prepared:
    """Return the problem of all agents on a data set."""
    options = {
        name: value
        for name, value in params.items()
        if name in spec.parameters or name not in of_data
    }
    N, how = len(whole_set.y), wanted.partition or whole_set.partition
    options |= _scales(spec, n, N, wanted)
    if wanted.intercept:
        whole_set = replace(whole_set, A=with_ones(whole_set.A))
        options["intercept"] = True
    parts = split(
        whole_set.y, n, how, alpha=wanted.alpha, per_agent=wanted.per_agent, seed=wanted.seed
    )
    options, arrays = registry.recipe(spec, whole_set, parts, 0, n, **options)
    whole = spec.of_data(*arrays, **options)
    options.pop("x_star", None)
    if isinstance(whole, LinearModel):
        arrays, options = (whole.A, whole.y, whole.mask), whole.options
    x_star, note = _solution(whole)
    return Prepared(
        whole,
        spec,
        options,
        arrays=arrays,
        x_star=x_star,
        note=note,
        partition=how,
        samples=N,
        classes=whole_set.classes,
        label=whole_set.label,
    )


def _without_data(
    data: object, n: int, spec: ProblemSpec, wanted: DataOptions, params: dict[str, Any]
) -> Prepared:
    """Return a problem that is made from the numbers of the agents, `make(agents, ...)`."""
    usual = DataOptions()
    for name in WITH_DATA:
        if vars(wanted)[name] != vars(usual)[name]:
            raise ValueError(
                f"{name} is given, but {spec.name} is made from the numbers of the agents and "
                "takes no data: omit it"
            )
    if data is not None:
        raise ValueError(
            f"data is given, but {spec.name} is made from the numbers of the agents: omit data"
        )
    params |= wanted.penalties
    for name in params:
        check.known_name(name, spec.parameters, "parameter of the problem")
    whole = spec.of_agents(range(n), n, **params)
    return Prepared(whole, spec, params, None, *_solution(whole), partition="", samples=0)


def _parameters(data: object) -> tuple[str, ...]:
    """Return the parameters of what makes a data set or reads a file."""
    make = maker(os.fspath(data)) if isinstance(data, (str, os.PathLike)) else None
    return () if make is None else tuple(inspect.signature(make).parameters)


def _check_names(params: dict[str, Any], spec: ProblemSpec, of_data: tuple[str, ...]) -> None:
    """Refuse parameters that neither the problem nor the data set has."""
    if spec.takes_any:
        return
    known = [*spec.parameters, *of_data, *inspect.signature(load_problem).parameters]
    names = [word for word in dict.fromkeys(known) if word not in ("data", "problem", "params")]
    for param in params:
        check.known_name(param, names, f"parameter of problem {spec.name}")


def usual_partition(data: str, n: int, label: str | int | None, options: dict[str, Any]) -> str:
    """Return the partition of a data set or file, made with the `options` that it takes, where
    none is asked for.
    """
    return _data(data, label, _parameters(data), {"n": n, **options}).partition


def _data(
    data: object,
    label: str | int | None,
    of_data: tuple[str, ...],
    options: Mapping[str, Any],
    features: int | None = None,
) -> Dataset:
    """Return the data set that `data` stands for, made with those `options` that it has."""
    if isinstance(data, (str, os.PathLike)):
        known = {name: options[name] for name in of_data if name in options}
        return loaded(data, label, features, **known)
    if features is not None:
        raise ValueError("features with arrays: it is for LIBSVM files; pass (A, y)")
    if label is not None:
        raise ValueError("label with arrays: it chooses a column of a file; pass (A, y)")
    return _arrays(data)


def _held_out(data: Dataset, wanted: DataOptions) -> tuple[Dataset, Dataset | None]:
    """Return the training samples, and the test set, if there is one."""
    test, N = wanted.test, len(data.y)
    if test is None:
        return data, None
    if not isinstance(test, (int, float)):
        label = wanted.label if isinstance(test, (str, os.PathLike)) else None
        other = _data(test, label, (), {})
        if data.sparse and other.sparse:
            zero = [any(note.startswith(FROM_0) for note in each.notes) for each in (data, other)]
            if zero[0] != zero[1]:
                raise ValueError(
                    f"the indices of {data.name} count from {1 - zero[0]}, those of {other.name} "
                    f"from {1 - zero[1]}, expected the same: if both count from 0, write 0:0 into "
                    "a line of the one without an index 0"
                )
            data, other = _as_wide(data, other)
        if data.names and other.names:
            other = replace(other, A=other.A[:, ordered(other.names, data.names, "test")])
        if other.A.shape[1] != data.A.shape[1]:
            raise ValueError(
                f"test has {other.A.shape[1]} features, expected {data.A.shape[1]}, as in the data"
            )
        return data, replace(other, A=alike(other.A, data.A))
    share = check.number(test, "test", above=0, below=1)
    order = np.random.default_rng([wanted.seed, TEST]).permutation(N)
    order = order[np.argsort(data.y[order], kind="stable")]  # of each class the same share
    there = np.zeros(N, bool)
    there[order] = np.diff(np.floor(np.arange(N + 1) * share)) > 0
    if not there.any():
        raise ValueError(f"test = {share:g} of {N} samples is none, expected a larger share")
    kept, held = (replace(data, A=data.A[part], y=data.y[part]) for part in (~there, there))
    return replace(kept, x_star=None), held


def _as_wide(*sets: Dataset) -> list[Dataset]:
    """Pad sparse data sets, which omit trailing zero features, to the same number of features."""
    width = max(each.A.shape[1] for each in sets)
    if len({each.A.shape[1] for each in sets}) > 1:
        _warn(
            f"data {sets[0].name} has {sets[0].A.shape[1]} features, the test set "
            f"{sets[1].A.shape[1]}: both are padded with zeros to {width} (features={width} says "
            "so)"
        )
    return [replace(each, A=widened(each.A, width)) for each in sets]


def _given(
    whole: LinearModel, scaling: Scaling | None, data: Dataset, test: Dataset | None
) -> Given:
    """Return how samples and labels as given become those of a problem, and the test set."""
    known = None if whole.labels == "numbers" else np.unique(_labels(data))
    held = None
    if test is not None:
        y = test.y if known is None else _places(_labels(test), known)
        held = test.A, 2.0 * y - 1 if whole.labels == "signs" else y
    if known is not None and len(known) < whole.options.get("classes", 2):
        known = None  # some classes have no name
    return Given(scaling, known, held, data.notes, data.names)


def _labels(data: Dataset) -> NDArray[Any]:
    """Return the labels as given."""
    return np.array(data.classes)[data.y.astype(int)] if data.classes else data.y


def _places(labels: NDArray[Any], known: NDArray[Any]) -> Array:
    """Return the index of each label among the labels of the training samples."""
    strange = sorted(set(labels.tolist()) - set(known.tolist()))
    if strange:
        raise ValueError(
            f"test has the label {strange[0]}, expected those of the training samples: "
            f"{', '.join(map(str, known[:5]))}{', ...' * (len(known) > 5)}"
        )
    return np.searchsorted(known, labels).astype(float)


def _arrays(data: object) -> Dataset:
    if isinstance(data, Dataset):
        return data
    if hasattr(data, "data") and hasattr(data, "target"):
        return dataset(data.data, data.target)
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return dataset(*data)
    what = (
        f"an array of shape {data.shape}"
        if isinstance(data, np.ndarray)
        else f"a {type(data).__name__}"
    )
    raise TypeError(
        f"data is {what}, expected a name, a file, or two arrays (A, y): load_problem((A, y), n=16)"
    )


def _check_size(data: Dataset) -> None:
    """Refuse data whose squares, and in float64 their squares, exceed the range of their dtype."""
    dtype = data.A.dtype.type(0).real.dtype.name
    limit, products = LARGEST[dtype], "two" if dtype == "float32" else "four"
    entries = data.A.data if is_sparse(data.A) else data.A
    for name, values, remedy in (
        ("A", entries, f"{_remedy(data.A)} removes their scale"),
        ("y", np.asarray(data.y), "change their unit"),
    ):
        largest = float(np.abs(values).max(initial=0.0)) if values.dtype.kind in "fc" else 0.0
        if largest > 0 and not 1 / limit <= largest <= limit:
            raise ValueError(
                f"data {data.name}: the largest entry of {name} is {largest:.1g}, expected "
                f"{1 / limit:g} to "
                f"{limit:g}, since products of {products} entries must fit into {dtype}: {remedy}"
            )


def _uneven(data: Dataset) -> str:
    """Return a hint if the columns differ very much in size, or an empty text."""
    A = data.A
    # Columns that are rarely not zero have small mean squares, and need no scale for that.
    size = column_sizes(A) if is_sparse(A) else np.sqrt(squares(double(A)).mean(axis=0))
    if not (size > 0).any() or (ratio := size.max() / size[size > 0].min()) <= UNEVEN:
        return ""
    return (
        f"data {data.name}: the columns of A differ in size by a factor of {ratio:.1g}, which "
        f"makes first-order methods slow; {_remedy(data.A)} removes this"
    )


def _remedy(A: Array | csr_array) -> str:
    """Return the setting that makes columns equal in size."""
    word = "scale" if is_sparse(A) else "true"
    return (
        f"standardize={'True' if word == 'true' else repr(word)} (--set problem.standardize={word})"
    )


def _scales(spec: ProblemSpec, n: int, N: int, wanted: DataOptions) -> dict[str, Any]:
    """Return the factor of the loss, the ridge and the term, as arguments of the problem."""
    given = wanted.penalties
    result: dict[str, Any] = {}
    per, word = (N, "mean") if wanted.scale == "mean" else (n, "sum")
    # The average over n agents of n / N times their sums is the mean over all N samples.
    if word == "mean" and n != N:
        result["weight"] = n / N
    amounts = {}
    for name in ("l2", "l1"):
        each, total = given.get(name), given.get(f"{name}_total")
        if each is not None and total is not None:
            raise ValueError(
                f"{name} = {each} and {name}_total = {total}, expected one of them: {name} is that "
                "of every agent"
            )
        if total is not None:
            each = check.number(total, f"{name}_total", least=0) / per
        amounts[name] = each
    entry = registry.PROBLEMS.get(spec.name)
    if amounts["l2"] is None and entry is not None and entry.make is spec.make:
        amounts["l2"] = entry.l2_total / per
    if amounts["l2"] is not None:
        result["l2"] = amounts["l2"]
    term = terms.term(
        l1=0.0 if amounts["l1"] is None else amounts["l1"],
        lower=wanted.lower,
        upper=wanted.upper,
        simplex=wanted.simplex,
    )
    if term is not None:
        result["term"] = term
    return result


def _solution(whole: Problem) -> tuple[Array | None, str]:
    """Return the minimizer of the average, or None and the reason."""
    x_star, solution = x_star_of(whole), solution_of(whole)
    if targets_of(whole) is not None:
        return None, ""
    if x_star is None and is_sampled(whole):
        return None, "the error metric is not available: give the stream its x_star"
    if x_star is None:
        try:
            x_star = minimizer(whole) if solution is None else solution()
        except ValueError as error:
            return None, f"the error metric is not available: {error}"
    return double(np.asarray(x_star)), ""


def local(prepared: Prepared, lo: int, hi: int) -> Problem:
    """Return the problem of agents lo..hi-1, with the solution for all.

    Examples
    --------
    >>> from mpidec.problems.loading import local, prepare
    >>> local(prepare("synthetic_least_squares", 4), 1, 3).m
    2
    """
    n = prepared.whole.m
    if not 0 <= lo <= hi <= n:
        raise ValueError(f"agents {lo}..{hi} of {n}, expected 0 <= lo <= hi <= n = {n}")
    if prepared.arrays is None:
        problem = prepared.spec.of_agents(range(lo, hi), n, **prepared.options)
    else:
        A, y, mask = prepared.arrays
        mask = None if mask is None else mask[lo:hi]
        problem = prepared.spec.of_data(A[lo:hi], y[lo:hi], mask, **prepared.options)
    return _of_n(problem, n, prepared.x_star, prepared.given)


def scattered(
    prepared: Prepared | None, problem: str | Callable[..., Problem] | None, net: Agents
) -> Problem:
    """Return the problem of the local agents from the one that rank 0 holds; collective.

    Parameters
    ----------
    prepared : Prepared, or None
        On rank 0; None elsewhere.
    problem : str or callable, or None
        What builds the problem, if it is known on every rank; otherwise that of `prepared`, one of
        the package.
    net : Network

    Examples
    --------
    >>> import mpidec
    >>> from mpidec.problems.loading import prepare, scattered
    >>> with mpidec.Network(4) as net:
    ...     problem = scattered(
    ...         prepare("synthetic_least_squares", 4) if net.rank == 0 else None, None, net
    ...     )
    """
    head: tuple[Any, ...] = ()
    arrays: tuple[Samples | None, Array | None, registry.Mask] = (None, None, None)
    if prepared is not None:
        arrays = prepared.arrays or arrays
        there = [array is not None for array in arrays]
        features = arrays[0].shape[2] if isinstance(arrays[0], SparseSamples) else 0
        about = prepared.options, prepared.x_star, there, prepared.given, features
        head = (prepared.spec.name, *about)
    name, options, x_star, there, given, features = net.collectives.broadcast(
        head, 0, "the problem"
    )
    rows: list[Any] = []
    if there[0]:
        rows = [_scattered_samples(arrays[0], features, net), net.scatter(arrays[1])]
    if there[2]:
        rows.append(net.scatter(arrays[2]))
    made, error = None, None
    try:
        spec = problem_spec(name if problem is None else problem)
        made = (
            spec.of_data(rows[0], rows[1], rows[2] if there[2] else None, **options)
            if rows
            else spec.of_agents(net.agents, net.n, **options)
        )
    except Exception as caught:  # raised on all ranks
        error = caught
    net.agree(error)
    return _of_n(made, net.n, x_star, given)


def _scattered_samples(A: Samples | None, features: int, net: Agents) -> Samples:
    """Return the local agents' samples, of those of all agents on rank 0, sparse ones with so many
    `features`; collective.
    """
    if not features:
        return net.scatter(None if A is None else np.asarray(A))
    data, indices, lengths = None, None, None
    if isinstance(A, SparseSamples):
        data, indices, lengths = A.rows.data, A.rows.indices, A.lengths
    own = net.scatter(lengths)
    counts = net.collectives.gather_all(np.array(own.sum()), "the samples")
    return SparseSamples.split(
        net.scatter(data, counts), net.scatter(indices, counts), own, features
    )


def _of_n(problem: Any, n: int, x_star: Array | None, given: Given) -> Problem:
    """Return `problem` with the number n of all agents, the solution, and what was given."""
    problem.n = n
    if isinstance(problem, LinearModel):
        problem.given = given
    if x_star is not None and x_star_of(problem) is None:
        problem.x_star = x_star
    found: Problem = problem
    return found
