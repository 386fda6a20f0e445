"""Input checks: each error states what is wrong, where, what was expected, and a remedy."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from numbers import Number, Real
from typing import Any, NoReturn, Protocol, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .plugins import canonical, did_you_mean as did_you_mean

Array = NDArray[np.float64]
COMPLEX = ": LeastSquares takes complex ones; for others, pass real and imaginary parts separately"
T = TypeVar("T")


def is_number(value: object) -> bool:
    """Return whether `value` is a real number, of Python or of NumPy, and no bool.

    Examples
    --------
    >>> is_number(1), is_number(np.float32(1)), is_number(True), is_number("1")
    (True, True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def number(
    value: object,
    name: str,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> float:
    """Return `value` as a finite float within the bounds; `name` says what it is, and of what:
    "ring: weights".

    Raises
    ------
    TypeError
        If it is no number.
    ValueError
        If it is not finite, or out of bounds.

    Examples
    --------
    >>> number(2, "l2", least=0)
    2.0
    >>> number(1, "DecentLaM: momentum", least=0, below=1)
    Traceback (most recent call last):
    ValueError: DecentLaM: momentum is 1, expected a finite number >= 0 and < 1
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        result = float(value)
        if math.isfinite(result) and least <= result <= most and above < result < below:
            return result
    bounds = (("> ", above), (">= ", least), ("< ", below), ("<= ", most))
    given = [f"{sign}{bound:g}" for sign, bound in bounds if math.isfinite(bound)]
    expected = " ".join(["expected a finite number", " and ".join(given)]).rstrip()
    raise _wrong(value, is_number(value), name, expected)


def integer(value: SupportsIndex, name: str, *, least: int = 1, most: int | None = None) -> int:
    """Return `value` as an int in `least` .. `most`; `name` as for :func:`number`.

    Raises
    ------
    TypeError
        If it is no integer.
    ValueError
        If it is out of bounds.

    Examples
    --------
    >>> integer(np.int64(2), "agents")
    2
    >>> integer(200, "QSGD: levels", most=127)
    Traceback (most recent call last):
    ValueError: QSGD: levels is 200, expected an integer from 1 to 127
    """
    bounds = f">= {least}" if most is None else f"from {least} to {most}"
    expected = f"expected an integer {bounds}"
    try:
        result = operator.index(value)
    except TypeError:
        raise _wrong(value, False, name, expected) from None
    if (
        isinstance(value, (bool, np.bool_))
        or result < least
        or (most is not None and result > most)
    ):
        raise _wrong(value, not isinstance(value, bool), name, expected)
    return result


def _wrong(value: object, right_type: bool, name: str, expected: str) -> Exception:
    shown = " ".join(repr(value.item() if isinstance(value, np.generic) else value).split())
    return (ValueError if right_type else TypeError)(f"{name} is {shown:.80}, {expected}")


def choice(value: object, name: str, known: Iterable[T], more: str = "") -> T:
    """Return `value`, an argument called `name`, if it is one of `known`; the error suggests
    similar ones.

    Examples
    --------
    >>> choice("iid", "partition", ("iid", "sorted"))
    'iid'
    >>> choice("sort", "partition", ("iid", "sorted"))
    Traceback (most recent call last):
    ValueError: partition is 'sort', expected one of iid, sorted (did you mean sorted?)
    """
    known = list(known)
    for one in known:
        if type(one) is type(value) and one == value:
            return one
    hint = did_you_mean(value, map(str, known))
    raise ValueError(
        f"{name} is {value!r}, expected one of "
        f"{', '.join(str(one) or repr(one) for one in known)}{more}{hint and f' ({hint})'}"
    )


def known_name(name: str, known: Iterable[str], what: str) -> str:
    """Return `name`, the user's name of a `what`, if it is one of `known`; the error suggests
    similar ones.

    Examples
    --------
    >>> known_name("minst", ("mnist", "cifar10"), "data set of images")
    Traceback (most recent call last):
    ValueError: unknown data set of images 'minst': did you mean mnist? expected one of mnist, cifar10
    """
    known = list(known)
    if name in known:
        return name
    hint = did_you_mean(name, known)
    raise ValueError(
        f"unknown {what} {name!r}: {hint}{hint and ' '}expected one of {', '.join(known)}"
    )


def component(name: str, known: Iterable[str] | Mapping[str, object], what: str) -> str:
    """Return the one of `known` that `name` stands for, whatever its case and hyphens; the error is
    that of `known_name`.

    Examples
    --------
    >>> component("Fashion-MNIST", ("mnist", "fashion_mnist"), "data set of images")
    'fashion_mnist'
    """
    return canonical(name, known) or known_name(name, known, what)


def plural(count: int, noun: str) -> str:
    """Return the count with its noun.

    Examples
    --------
    >>> plural(1, "rank"), plural(3, "rank")
    ('1 rank', '3 ranks')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def unmasked(values: T, name: str) -> T:
    """Return `values`; an array with masked entries, whose numbers NumPy would take, is refused.

    Raises
    ------
    TypeError
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        count = plural(int(np.ma.getmaskarray(values).sum()), "masked value")
        raise TypeError(
            f"{name} has {count}, expected none: leave these samples out, or impute them "
            "(X.filled(value) fills a masked array)"
        )
    return values


def floats(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """Return `values` in float64; complex numbers only if all imaginary parts are 0, which NumPy
    would drop with a warning, whatever they are.

    Raises
    ------
    TypeError, ValueError

    Examples
    --------
    >>> floats([1, 2 + 0j], "rates")
    array([1., 2.])
    >>> floats([1j], "rates")
    Traceback (most recent call last):
    TypeError: rates has imaginary parts, expected real numbers
    """
    array = np.asarray(unmasked(values, name))
    if array.dtype.kind == "c":
        if array.imag.any():
            raise TypeError(f"{name} has imaginary parts, expected real numbers")
        array = array.real
    return np.asarray(array, np.float64)


def real(values: ArrayLike, name: str, complex_too: bool = False) -> NDArray[np.number]:
    """Return `values` as an array of real numbers (integers and booleans included), or with
    `complex_too` of complex ones.
    """
    try:
        array = np.asarray(unmasked(values, name))
    except ValueError:
        raise ValueError(
            f"{name} is ragged: its rows differ in length; pad them and give a mask "
            "(problems.stack does both)"
        ) from None
    if array.dtype.kind == "O":
        strange = [x for x in array.flat if not isinstance(x, (Number, np.number, np.bool_))]
        if strange:
            raise TypeError(
                f"{name} has dtype object with {strange[0]!r:.40}, expected real numbers"
            )
        array = np.array(array.tolist())
    if array.dtype.kind not in ("biufc" if complex_too else "biuf"):
        remedy = COMPLEX if array.dtype.kind == "c" else ""
        raise TypeError(f"{name} has dtype {array.dtype}, expected real numbers{remedy}")
    return array


def data(A: ArrayLike, y: ArrayLike | None = None) -> Array:
    """Return the local agents' samples as a C-contiguous array (m, p, d), float32 if they are
    so, else float64.

    With the targets `y`, samples and targets may be complex: complex64 or complex128 then.
    """
    array = real(A, "A", complex_too=y is not None)
    if array.ndim != 3:
        raise ValueError(
            f"A has shape {array.shape}, expected (m, p, d): m local agents, p samples each, d "
            "features "
            "(problems.stack(A, y, parts, lo, hi) builds it from (N, d))"
        )
    if 0 in array.shape[1:]:
        raise ValueError(
            f"A has shape {array.shape}, expected at least one sample and one feature per agent "
            "(use no more agents than there are samples)"
        )
    dtype = precision(array)
    if y is not None and np.iscomplexobj(y):
        dtype = np.result_type(dtype, np.complex64)
    return np.ascontiguousarray(array, dtype=dtype)


def precision(array: NDArray[np.generic]) -> DTypeLike:
    """Return the type in which to compute with data: float32 for float32, float64 for everything
    else; complex64 and complex128 for those.

    Examples
    --------
    >>> precision(np.ones(2, np.float32)), precision(np.ones(2, int))
    (<class 'numpy.float32'>, <class 'numpy.float64'>)
    """
    kept = (np.float32, np.complex64, np.complex128)
    return next((dtype for dtype in kept if array.dtype == dtype), np.float64)


class Stack(Protocol):
    """Samples of agents, (m, p, d): an array, or sparse."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...


def targets(y: ArrayLike, name: str, A: Stack) -> Array:
    """Return one target per sample, (m, p), with the dtype of `A`."""
    array = real(y, name, complex_too=A.dtype.kind == "c")
    if array.shape != A.shape[:2]:
        raise ValueError(
            f"{name} has shape {array.shape}, expected {A.shape[:2]}: one target per sample of A"
        )
    return np.ascontiguousarray(array, dtype=A.dtype)


def valid(mask: ArrayLike | None, A: Stack) -> NDArray[np.bool_] | None:
    """Return the mask (m, p), True for samples, or None if there is no padding."""
    if mask is None:
        return None
    array = np.asarray(unmasked(mask, "mask"))
    if array.shape != A.shape[:2]:
        raise ValueError(
            f"mask has shape {array.shape}, expected {A.shape[:2]}: one entry per sample of A "
            f"{A.shape}"
        )
    if array.dtype != bool and not np.isin(array, (0, 1)).all():
        raise ValueError(
            "mask holds values other than 0 and 1, expected 1 (a sample) or 0 (padding)"
        )
    array = array.astype(bool)
    if (empty := ~array.any(axis=1)).any():
        raise ValueError(
            f"local agent {int(empty.argmax())} has no samples, expected at least one "
            "(use no more agents than there are samples)"
        )
    return array


def minimizer(x_star: ArrayLike | None, d: int, complex_too: bool = False) -> Array | None:
    """Return a known minimizer as an array (d,) of float64, or with `complex_too` of complex128 if
    it is complex, a copy; None if there is none.
    """
    if x_star is None:
        return None
    array = np.array(real(x_star, "x_star", complex_too))
    array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    if array.shape != (d,):
        raise ValueError(f"x_star has shape {array.shape}, expected ({d},)")
    if not np.isfinite(array).all():
        raise ValueError(f"x_star is {array}, expected finite numbers")
    return array


def minimizers(x_star: ArrayLike, n: int, d: int) -> Array:
    """Return the known minimizers of at least n agents as an array (n, d), a copy."""
    array = np.array(real(x_star, "x_star", True))
    if len(array) < n or array.shape[1:] != (d,):
        raise ValueError(
            f"x_star has shape {array.shape}, expected ({d},), or a row for each of all agents, "
            f"of which there are at least {n}: (n, {d})"
        )
    finite(array, "x_star", ("agent", "entry"))
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def finite(array: Array, name: str, axes: Sequence[str] = ("local agent", "row", "column")) -> None:
    """Raise an error that names the place, an index along each of `axes`, if `array` holds a NaN
    or an infinity.
    """
    if np.isfinite(array).all():
        return
    place = np.argwhere(~np.isfinite(array))[0]
    refuse_value(array[tuple(place)], name, dict(zip(axes, place)))


def refuse_value(value: object, name: str, place: Mapping[str, int]) -> NoReturn:
    """Raise the error of a number that is not finite, with its place, an index along each axis.

    Examples
    --------
    >>> refuse_value(np.nan, "A", {"row": 2, "column": 0})
    Traceback (most recent call last):
    ValueError: A is nan at row 2, column 0, expected finite numbers (drop or impute that sample)
    """
    where = ", ".join(f"{axis} {i}" for axis, i in place.items())
    raise ValueError(
        f"{name} is {value} at {where}, expected finite numbers (drop or impute that sample)"
    )


def returned(
    value: object,
    of: str,
    shape: tuple[int, ...],
    what: str = "real numbers",
    *,
    single: bool = False,
) -> NDArray[Any]:
    """Return what a function of the user's, `of`, has returned as an array of this shape: an array
    would take None for undefined numbers, and texts and bools for numbers.

    Parameters
    ----------
    what : {"real numbers", "numbers", "bools"}
        What it has to hold; "numbers" may be complex.
    single : bool
        Whether a single one stands for all of them.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> returned([1, 2], "metric m", (2,))
    array([1, 2])
    >>> returned("no", "stop(metrics)", (), "bools")
    Traceback (most recent call last):
    ValueError: stop(metrics) returned 'no', expected bools of shape ()
    """
    kinds = {"real numbers": "iuf", "numbers": "iufc", "bools": "b"}[what]
    try:
        array = np.asarray(unmasked(value, f"what {of} returned"))
    except (TypeError, ValueError, RuntimeError):  # masked, ragged, or a tensor with a gradient
        array = np.empty((), object)
    right = array.shape == shape or (single and array.shape == ())
    if array.dtype.kind in kinds and right:
        return array
    if array.dtype.kind in "OUSV" and array.shape == ():
        given = f"{' '.join(repr(value).split()):.60}"
    else:
        given = f"{array.dtype} of shape {array.shape}"
    hint = ": is a return missing?" if value is None else ""
    raise ValueError(f"{of} returned {given}, expected {what} of shape {shape}{hint}")


def takes(function: object, what: str, *parameters: str) -> None:
    """Refuse what cannot be called with these arguments, before anything is done with it.

    Raises
    ------
    TypeError

    Examples
    --------
    >>> takes(lambda X, agents: X, "metric msd", "X", "agents", "k")
    Traceback (most recent call last):
    TypeError: metric msd is <lambda>(X, agents), expected a function of (X, agents, k): too many positional arguments
    """
    expected = f"expected a function of ({', '.join(parameters)})"
    if not callable(function):
        raise TypeError(f"{what} is {' '.join(repr(function).split()):.60}, {expected}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function of C has none
        return
    try:
        signature.bind(*parameters)
    except TypeError as error:
        name = getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]
        raise TypeError(f"{what} is {name}{signature}, {expected}: {error}") from None


def some(values: NDArray[np.number], most: int = 5) -> str:
    """Return the first few of `values` as text for a message."""
    words = [f"{value:g}" for value in values[:most]]
    return ", ".join(words) + (f", ... ({len(values)} in all)" if len(values) > most else "")
