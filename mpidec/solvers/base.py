"""Base class of the solvers, and helpers that several of them share."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, ClassVar, TypeVar, cast, get_type_hints

import numpy as np
from numpy.typing import ArrayLike

from .. import _validation as check
from .._words import Described, Drawing, warn
from ..protocols import Functions, Graph, Operator
from .needs import Needs, OneOf, Within
from .step_schedules import WORDS, StepSchedule, StepSize, parsed

S = TypeVar("S", bound="Solver")
T = TypeVar("T")
# Agents up to which the spectrum is computed for a warning.
_LARGE = 1500
# Graphs of a schedule whose symmetry is checked.
_PHASES = 64


class Bias(enum.Enum):
    """Whether a method with a constant step size leads to the minimizer, and what the distance left
    depends on.

    Examples
    --------
    >>> import mpidec
    >>> ring, complete = mpidec.topology.ring(4), mpidec.topology.complete(4)
    >>> mpidec.solvers.Diffusion(0.1).bias_on(ring).value
    'it shrinks with the step size'
    >>> (
    ...     mpidec.solvers.Diffusion(0.1).bias_on(complete).value,
    ...     mpidec.solvers.EXTRA(0.1).bias_on(ring).value,
    ... )
    ('none', 'none')
    """

    NONE = "none"
    STEP = "it shrinks with the step size"
    OTHER = "it need not shrink with the step size"


class Solver(Described, Drawing):
    """The protocol of a solver; each one is a frozen dataclass of its hyper-parameters.

    A solver is the paper's equations on a stack of rows, one row per agent.  It asks the functions
    `F` of the local agents for what a step needs, usually the gradients `G`, is given the operator
    `W`, and knows nothing of MPI, files or clocks::

        s = solver.init(X, W.at(0))
        for k in range(steps):
            G = solver.ask(F.at(k), s)
            s = solver.step(s, G, W.at(k))

    A state is a NamedTuple with the field `X`, the iterate.  Its other fields are arrays with a row
    per local agent, arrays with a row per edge into the local agents (named in `needs.per_edge`),
    or plain numbers: all that a restart needs.  All arrays have the kind, the dtype and the device
    of `X`: NumPy, PyTorch or CuPy.

    Attributes
    ----------
    needs : Needs
        What the solver needs of `W` and of the problem; `check` refuses what does not provide it.
    exact : bool
        Whether the iterates of all agents converge to the minimizer with a constant step size.
        `step_size="auto"` is the fastest step size of an exact method, and otherwise the one of
        least error after the steps of the run.
    adaptive : bool
        Whether a step divides by sizes of earlier gradients, or of their changes, so that bias and
        noise are not proportional to the step size; "auto" then gives no prediction.
    draws : bool
        Whether its steps draw random numbers, which a seed changes; by default, whether it has a
        parameter `seed`.
    keeps_mean : bool
        Whether, on a doubly stochastic W, the mean of the agents takes the steps of a single agent
        with the mean of the gradients.
    columnwise : bool
        Whether a step computes each column of the rows by itself, as it must for "auto"; not with
        norms of rows, for example.  Only then may many runs take their steps together, as columns
        of one stack (``solve(..., runs=100)``).
    keeps_rows : bool
        Whether rows handed to `W` are never changed afterwards, neither by `step` nor by the
        gradient at `point(s)`.  Where a solver declares this, `solve` need not wait until the
        neighbours have read the rows.  All solvers of this package declare it; the default is
        False.

    Notes
    -----
    `step_size` is a number; "auto" or "safe", which `solve` replaces by a number; or a function of
    the step k, such as a schedule of `mpidec.solvers`, with which `solve` makes the solver of each
    step.  `init` and `step` meet numbers only, or an array with one step size per column: `solve`
    tries many step sizes at once, as columns of one stack.

    Parameters annotated with `Within` and `OneOf` (`mpidec.solvers.needs`) are checked when a
    solver is made; a number becomes a `float`.  One whose default is None may be None.
    """

    needs: ClassVar[Needs] = Needs()
    exact: ClassVar[bool] = True
    adaptive: ClassVar[bool] = False
    keeps_mean: ClassVar[bool] = True
    columnwise: ClassVar[bool] = True
    keeps_rows: ClassVar[bool] = False
    step_size: Any

    def __post_init__(self) -> None:
        positive_step(self)
        if dataclasses.is_dataclass(self):
            bounds = limits(type(self))
            for field in dataclasses.fields(self):
                value, limit = getattr(self, field.name, None), bounds.get(field.name)
                what = f"{name_of(self)}: {field.name}"
                if isinstance(field.default, bool):
                    if not isinstance(value, (bool, np.bool_)):
                        raise TypeError(f"{what} is {value!r}, expected True or False")
                    object.__setattr__(self, field.name, bool(value))
                elif isinstance(limit, OneOf):
                    check.choice(value, what, limit)
                elif limit is not None and (value is not None or field.default is not None):
                    number(self, field.name, limit)

    def init(self, X: np.ndarray, W: Any = None) -> Any:
        """Return the state at the iterate `X`, shape `(m, d)`; `W`, the operator of step 0, is used
        only by solvers that say so.
        """
        raise NotImplementedError(f"{name_of(self)} has no init(X, W), which makes the first state")

    def step(self, s: Any, G: Any, W: Operator) -> Any:
        """Return the state after one step, from what `ask` returned, such as the gradients, with
        the operator `W` of the step.
        """
        raise NotImplementedError(
            f"{name_of(self)} has no step(s, G, W), which makes the next state"
        )

    def ask(self, F: Functions, s: Any) -> Any:
        """Return what the next step is given, of the functions `F` at this step: the gradients at
        `point(s)`, shape `(m, d)`.

        A solver that evaluates more than these returns `F` itself, and names what it calls in
        `needs.functions`.
        """
        return F.grad(self.point(s))

    def point(self, s: Any) -> Any:
        """Return the rows at which the next step needs its gradients, shape `(m, d)`."""
        return s.X

    @property
    def period(self) -> int:
        """Number of steps after which the solver's operations repeat: its field `local_steps`, if
        it has one, or 1.
        """
        return int(getattr(self, "local_steps", 1))

    @property
    def by_parts(self) -> bool:
        """Whether complex rows take the steps of their real and imaginary parts; False of a solver
        that takes moduli of entries.
        """
        return True

    def advice(self, steps: int) -> str:
        """Describe what is wrong with a run of this many steps, with a remedy; empty if nothing
        is.
        """
        H = self.period
        if H == 1 or steps >= H:
            return ""
        return (
            f"{name_of(self)} mixes every {H} steps, the run takes {steps}, all without "
            "communication: take more steps, or "
            f"local_steps={max(1, steps // 10)}"
        )

    def check(self, topology: Graph) -> None:
        """Refuse a topology that the solver cannot work with, and warn of one on which it is
        unstable.

        With the step size "auto", no warning: the search refuses the topology if no step size makes
        the solver stable.

        Raises
        ------
        ValueError
            With the reason, and with a topology that works.
        """
        needs = self.needs
        _check_kind(self, topology)
        signed = needs.positive and topology.kind != "doubly" and 1 < topology.n <= _LARGE
        if signed and topology.period == 1 and topology.at(0).W.toarray().min() < 0:
            raise ValueError(
                f"{name_of(self)} divides by weights that W mixes, which need a W without negative "
                "entries unless it is "
                f"doubly stochastic, the {topology.name} topology has some; {REMEDIES['column']}"
            )
        phases = range(min(topology.period or 1, _PHASES))
        if needs.symmetric and not all(topology.at(k).symmetric for k in phases):
            raise ValueError(
                f"{name_of(self)} needs a symmetric W, that of the {topology.name} topology is "
                f"not; {REMEDIES['symmetric']}"
            )
        if start_of(self) != "auto" and (cause := self.unstable(topology)):
            warn(cause)

    def bias_on(self, topology: Graph) -> Bias:
        """Return the bias on a topology, with exact gradients and without codecs, losses and
        noise.
        """
        return Bias.NONE if self.exact else Bias.STEP

    def unstable(self, topology: Graph) -> str:
        """Return why the disagreement between agents grows on a topology, with a remedy; empty if
        it does not.

        A warning, no error, where the step size is given, since instability is studied, too.
        """
        return ""


def _check_kind(solver: Solver, topology: Graph) -> None:
    """Refuse a W whose sums are not those that the solver needs."""
    needs = solver.needs
    if topology.kind in needs.kinds or (needs.samples and is_sample(topology)):
        return
    single = " or ".join(kind for kind in needs.kinds if kind != "pair") + " stochastic W"
    pair = ", or a row and a column stochastic one" if "pair" in needs.kinds else ""
    given = {"pair": "a pair", "any": "a graph filter, which averages nothing"}.get(
        topology.kind, f"{topology.kind} stochastic"
    )
    raise ValueError(
        f"{name_of(solver)} needs a {single}{pair}, the {topology.name} topology is {given}; "
        f"{REMEDIES[needs.kinds[-1]]}"
    )


class FunctionSolver(Solver):
    """Base class of solvers whose `step` evaluates the functions `F` itself, where it needs them:
    `step(s, F, W)`.

    What it calls of them stands in `needs.functions`.

    Examples
    --------
    >>> import mpidec
    >>> mpidec.solvers.NIDS.needs.functions
    ('grad', 'prox')
    """

    def ask(self, F: Functions, s: Any) -> Functions:
        return F


class LocalSolver(Solver):
    """Base class of solvers that mix once in `local_steps` steps."""

    keeps_rows: ClassVar[bool] = True
    local_steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        H = check.integer(self.local_steps, f"{name_of(self)}: local_steps")
        object.__setattr__(self, "local_steps", H)


def is_sample(topology: Graph) -> bool:
    """Return whether each step of a topology is the average over a sample of the agents."""
    return topology.samples


def averages(topology: Graph) -> bool:
    """Return whether each step of a topology is the exact average."""
    if topology.period != 1 or topology.n > _LARGE:
        return False
    return topology.kind == "doubly" and topology.at(0).spectral_gap() > 1 - 1e-9


REMEDIES = {
    "doubly": 'use weights="metropolis" on an undirected graph, weights="sinkhorn" on a directed one, or topology.exponential(n)',
    "column": 'use weights="push" on the same graph, or any doubly stochastic one, such as topology.ring(n)',
    "pair": 'use weights="push-pull" on the same graph, or any doubly stochastic one, such as topology.ring(n)',
    "symmetric": 'use weights="metropolis" on an undirected graph, or topology.symmetric_exponential(n)',
    "row": 'use weights="uniform" on the same graph, or any doubly stochastic one, such as topology.ring(n)',
}


def needed(solver: Solver, W: Operator | None, why: str) -> Operator:
    """Return the operator of step 0, which `init` of this solver needs.

    Raises
    ------
    ValueError
    """
    if W is None:
        raise ValueError(
            f"{name_of(solver)} {why}: init(X, W) needs W, the operator of step 0, such as W.at(0)"
        )
    return W


def zeros(X: np.ndarray, *shape: int) -> np.ndarray:
    """Zeros of the kind, dtype and device of `X`: a NumPy or CuPy array, or a PyTorch tensor.

    Examples
    --------
    >>> import numpy as np
    >>> zeros(np.ones((2, 3), np.float32), 2, 1)
    array([[0.],
           [0.]], dtype=float32)
    """
    # CuPy answers np.zeros_like.
    return X.new_zeros(shape) if hasattr(X, "new_zeros") else np.zeros_like(X, shape=shape)


def name_of(solver: object) -> str:
    """Return the class name of a solver: `ExactDiffusion`."""
    return type(solver).__name__


def step_size_of(solver: Solver) -> Any:
    """Return the step size of a solver: a number, a text, an array or a function of k; None of one
    that has none.
    """
    return getattr(solver, "step_size", None)


def start_of(solver: Solver) -> Any:
    """Return the step size of a solver, of a schedule its start."""
    step = step_size_of(solver)
    return step.start if isinstance(step, StepSchedule) else step


def check_dataclass(solver: object) -> None:
    """Raise TypeError if a solver, or its class, is not a dataclass."""
    if not dataclasses.is_dataclass(solver):
        name = solver.__name__ if isinstance(solver, type) else name_of(solver)
        raise TypeError(
            f"{name} is no dataclass: write @dataclasses.dataclass(frozen=True) above class "
            f"{name}, and its parameters with their "
            'types, such as step_size: float | str = "auto"'
        )


def with_step_size(solver: S, step_size: StepSize | np.ndarray | Callable[[int], np.ndarray]) -> S:
    """Return the same solver with another step size: a number, a function of k, or an array with
    one number per column.

    Examples
    --------
    >>> import mpidec
    >>> with_step_size(mpidec.solvers.EXTRA(), 0.5)
    EXTRA(step_size=0.5)
    """
    check_dataclass(solver)
    return dataclasses.replace(solver, step_size=step_size)  # type: ignore[type-var]


def at_step(solver: S, k: int) -> S:
    """Return the solver of step k, whose step size is a number."""
    if not callable(solver.step_size):
        return solver
    size = solver.step_size(k)
    if isinstance(size, np.ndarray) and size.ndim > 1:
        raise ValueError(
            f"{name_of(solver)}: step_size({k}) has shape {size.shape}, expected a number"
        )
    return with_step_size(solver, size)


def state(solver: Solver, method: str, s: T, shape: tuple[int, ...]) -> T:
    """Return the state `s` that a method of a solver has returned, checked: a NamedTuple with the
    rows `X` of the given shape.

    Raises
    ------
    TypeError, ValueError
    """
    what = (
        f"{name_of(solver)}.{method}() must return the state, a NamedTuple with the field X of "
        f"shape {shape}"
    )
    names: tuple[str, ...] = getattr(s, "_fields", ())
    if not isinstance(s, tuple) or "X" not in names:
        fields = f" with the fields {', '.join(names)}" if names else ""
        raise TypeError(
            f"{what}, got "
            f"{'None: is a return missing?' if s is None else f'a {type(s).__name__}{fields}'}"
        )
    X = s[names.index("X")]
    given = tuple(getattr(X, "shape", ()))
    if given != shape:
        raise ValueError(
            f"{what}, got an X {f'of shape {given}' if given else f'that is a {type(X).__name__}'}"
        )
    return s


def positive_step(solver: Solver) -> None:
    """Check `solver.step_size`, and convert the text of a schedule.

    It is a finite number >= 0 or an array of such, "auto", "safe", or a function of the step k.

    Raises
    ------
    ValueError
    """
    step = solver.step_size
    # A float keeps the dtype of float32 rows.
    if isinstance(step, np.floating):
        object.__setattr__(solver, "step_size", step := float(step))
    if callable(step):
        check.takes(step, f"{name_of(solver)}: step_size", "k")
        return
    if isinstance(step, str) and step in WORDS:
        return
    what = f"{name_of(solver)}: step_size is {step!r}, expected a finite number >= 0"
    if isinstance(step, str):
        try:
            object.__setattr__(solver, "step_size", parsed(step))
        except ValueError as error:
            raise ValueError(f'{what}, "auto", "safe", or a schedule: {error}') from None
    elif not (check.is_number(step) or isinstance(step, np.ndarray)) or not (
        np.isfinite(np.asarray(step, float)).all() and np.all(step >= 0)
    ):
        raise ValueError(f'{what}, "auto", "safe", or a function of the step')


def limits(solver: type[Solver]) -> dict[str, Within | OneOf]:
    """Return the bounds and choices that annotate the parameters of a class of solvers, by name.

    Examples
    --------
    >>> import mpidec
    >>> limits(mpidec.solvers.Diffusion)
    {'order': ('atc', 'cta')}
    """
    return _limits(cast("Hashable", solver))


@cache
def _limits(solver: Any) -> dict[str, Within | OneOf]:
    if not dataclasses.is_dataclass(solver):
        return {}
    try:
        hints = get_type_hints(solver, include_extras=True)
    except NameError:  # annotations of a user's own, whose names only a type checker knows
        return {}
    found = {
        field.name: limit
        for field in dataclasses.fields(solver)
        for limit in getattr(hints.get(field.name), "__metadata__", ())
    }
    return {name: limit for name, limit in found.items() if isinstance(limit, (Within, OneOf))}


def number(solver: Solver, field: str, bounds: Within) -> None:
    """Check that a field of a solver is a finite number within the bounds, and make it a `float`.

    Raises
    ------
    TypeError, ValueError
    """
    name = f"{name_of(solver)}: {field}"
    value = check.number(getattr(solver, field), name, **dataclasses.asdict(bounds))
    object.__setattr__(solver, field, value)


def per_step(D: np.ndarray, step_size: Any) -> np.ndarray:
    r"""Return the movement :math:`D / \alpha` per unit of the step size; zero where the step size
    is zero.

    Examples
    --------
    >>> import numpy as np
    >>> per_step(np.ones((1, 2)), np.array([0.5, 0.0])), per_step(np.ones((1, 2)), 0.0)
    (array([[2., 0.]]), array([[0., 0.]]))
    """
    if type(step_size) is np.ndarray:  # one number per column
        a = step_size.astype(D.dtype, copy=False)
        movement: np.ndarray = np.divide(D, a, out=np.zeros_like(D), where=a != 0)
        return movement
    return D / float(step_size) if step_size else zeros(D, *D.shape)


def _largest_root(polynomials: np.ndarray) -> np.ndarray:
    """Return the largest modulus of a root of each polynomial, coefficients with the highest power
    first, from the eigenvalues of companion matrices.

    Examples
    --------
    >>> _largest_root(np.array([[1.0, -3.0, 2.0], [1.0, 0.0, 9.0]])).tolist()
    [2.0, 3.0]
    """
    count, d = len(polynomials), polynomials.shape[1] - 1
    companions = np.zeros((count, d, d), np.result_type(polynomials, float))
    companions[:, range(1, d), range(d - 1)] = 1
    companions[:, 0] = -polynomials[:, 1:] / polynomials[:, :1]
    largest: np.ndarray = np.abs(np.linalg.eigvals(companions)).max(axis=1)
    return largest


def disagreement(
    solver: Solver,
    topology: Graph,
    roots: Callable[[complex], ArrayLike],
    remedy: str,
) -> str:
    """Name an eigenvalue of `W` for which the disagreement between agents grows with a small step
    size, and a remedy; empty if there is none.

    Parameters
    ----------
    roots : callable
        `roots(lam)`: the coefficients, highest power first, of the characteristic polynomial of
        `solver.period` steps for the eigenvalue `lam`.
    remedy : str
        For real eigenvalues; complex ones belong to a directed graph.
    """
    if topology.period != 1 or not 1 < topology.n <= _LARGE:
        return ""
    lams = np.linalg.eigvals(topology.at(0).W.toarray())
    lams = np.delete(lams, np.argmin(abs(lams - 1)))
    growths = _largest_root(np.array([roots(lam) for lam in lams]))
    worst, growth = lams[growths.argmax()], growths.max()
    if growth <= 1 + 1e-9:
        return ""
    if abs(worst.imag) > 1e-9:
        remedy = (
            "use an undirected graph, such as topology.symmetric_exponential(n), or "
            "GradientTracking, which needs none"
        )
    return (
        f"{name_of(solver)} is unstable on the {topology.name} topology with small steps: W has "
        "the eigenvalue "
        f"{worst:.3g}, for which the "
        f"disagreement grows by a factor of {growth ** (1 / solver.period):.3g} per step; {remedy}"
    )
