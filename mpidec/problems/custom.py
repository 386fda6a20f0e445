"""User-defined problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .. import _validation as valid
from .._complex import double, is_complex
from .._validation import Array
from .._words import Described
from .agents import by_agents
from .members import known_minimizer

REAL = "Custom(..., dtype=complex) has complex unknowns, and so has any problem with a complex x0"
MODULUS = "take squares of moduli, abs(R)**2, in place of R**2"


class Custom(Described):
    r"""User-defined functions, given by their values and gradients on stacked rows.

    .. math:: f_i : \mathbb{R}^d \to \mathbb{R}, \qquad i = 1, \dots, m \text{ (the local agents)}

    Parameters
    ----------
    value : callable
        ``value(X)``: f_i at row i, (m, d) -> (m,).
    grad : callable
        ``grad(X)``: the gradient of f_i at row i, (m, d) -> (m, d). It must return a fresh array. A
        function with a second argument, ``grad(X, agents=None)``, returns with it the gradients of
        these local agents alone, one row of X for each; asynchronous runs of many agents in one
        process are faster with it.
    m : int
        Number of local agents; may be 0.
    d : int
        Length of a row.
    smoothness : float or (m,) array, optional
        Smoothness constants :math:`L_i > 0`, from which solvers can choose a step size.
    x_star : (d,) array or callable, optional
        Minimizer of the average over all agents, for the error metric; ``x_star(k)`` if a
        user-defined oracle moves it.
    dtype : dtype, optional
        That of the unknowns: float32, or complex64 or complex128 for functions of complex numbers;
        by default that of `x0`, and complex128 with a complex `x_star`.
    check : bool
        Whether `solve`, `simulate` and `tune` compare `grad` with differences of `value` before the
        first step; False if `value` is not the function that is minimized, or for gradients that
        are inexact on purpose.

    Raises
    ------
    ValueError, TypeError
        If an argument is invalid, or, when it is called, a function returns an array of the wrong
        shape.

    Notes
    -----
    Of a real function of complex numbers, the gradient g is that with :math:`f(x + h) = f(x) +
    \mathrm{Re}\, g^* h + \dots`, for :math:`\tfrac12 \|A x - b\|^2` so :math:`A^* (A x - b)`.

    Nothing is communicated. For bit-identical results on any number of ranks, row i must depend
    only on row i of X.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import Custom
    >>> C = np.array([[1.0], [3.0]])
    >>> problem = Custom(
    ...     lambda X: ((X - C) ** 2).sum(axis=1) / 2, lambda X: X - C, m=2, d=1, x_star=[2.0]
    ... )
    >>> problem.grad(np.zeros((2, 1))).ravel()
    array([-1., -3.])
    """

    def __init__(
        self,
        value: Callable[[Array], Array],
        grad: Callable[..., Array],
        m: int,
        d: int,
        *,
        smoothness: ArrayLike | None = None,
        x_star: ArrayLike | Callable[[int], ArrayLike] | None = None,
        check: bool = True,
        dtype: DTypeLike | None = None,
    ) -> None:
        for name, function in (("value", value), ("grad", grad)):
            valid.takes(function, f"Custom: {name}", "X")
        self._value, self._grad, self.check = value, grad, check
        self.m = valid.integer(m, "m", least=0)
        self.d = valid.integer(d, "d")
        self._some = by_agents(grad, self.m)
        self.x_star = known = known_minimizer(x_star, self.d)
        if dtype is None and is_complex(known):
            dtype = np.complex128
        if dtype is not None:
            self.dtype = np.dtype(dtype)
            if self.dtype.char not in "fdFD":
                raise TypeError(
                    f"dtype is {dtype!r}, expected float32, float64, complex64 or complex128"
                )
        self._smoothness: Array | None = None
        if smoothness is not None:
            constants = valid.floats(smoothness, "smoothness")
            if (
                constants.shape not in ((), (self.m,))
                or not (np.isfinite(constants) & (constants > 0)).all()
            ):
                raise ValueError(
                    f"smoothness = {smoothness}, expected a number > 0 or {self.m} of them"
                )
            self._smoothness = np.broadcast_to(constants, (self.m,)).copy()

    def _extent(self) -> dict[str, object]:
        return {"m": self.m, "d": self.d}

    def value(self, X: Array) -> Array:
        """Return f_i at row i, (m, d) -> (m,)."""
        return self._shaped(self._value(X), "value", (self.m,), None)

    def grad(self, X: Array, agents: Sequence[int] | None = None) -> Array:
        """Return the gradient of f_i at row i, (m, d) -> (m, d); with `agents`, of these local
        agents, one row of X for each.
        """
        if agents is None:
            return self._shaped(self._grad(X), "grad", (self.m, self.d), X)
        return self._shaped(self._some(X, agents=agents), "grad", (len(agents), self.d), X)

    @property
    def smoothness(self) -> Array:
        """Smoothness constants as given, (m,); a ValueError if they were not."""
        if self._smoothness is None:
            raise ValueError(
                "the smoothness of a Custom problem is unknown: set Custom(..., smoothness=L), or "
                "pass "
                "a step_size to the solver"
            )
        return self._smoothness

    @staticmethod
    def _shaped(result: Array, name: str, shape: tuple[int, ...], X: Array | None) -> Array:
        if np.iscomplexobj(result) and not is_complex(X):
            remedy = MODULUS if X is None else REAL
            raise TypeError(f"{name}(X) is complex, expected real numbers: {remedy}")
        # A copy: the function may return the same array again.
        made = np.array(valid.unmasked(result, f"what {name}(X) returns"))
        if made.shape != shape or made.dtype.kind not in "biufc":
            forgot = "; is a return missing?" if result is None else ""
            raise ValueError(
                f"{name}(X) returns {made.dtype} of shape {made.shape}, expected numbers of shape "
                f"{shape}{forgot}"
            )
        return double(made)
