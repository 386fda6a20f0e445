"""Step sizes that vary with the step: functions of k with a start value, written in Python or as
text.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from .. import _validation as check
from .._words import settings
from ..protocols import StepSize as StepSize

# Step sizes that `solve` replaces by numbers.
WORDS = ("auto", "safe")


@dataclass(frozen=True)
class StepSchedule:
    r"""Base of the schedules, :math:`\alpha_k = \alpha_0 c_k`: a start value times a factor that
    depends on the step only.

    A subclass is a frozen dataclass with the method `factor` and a `name`; every solver takes it as
    its `step_size`.

    Parameters
    ----------
    start : float or {"auto", "safe"}
        :math:`\alpha_0`; "auto" and "safe" are replaced by a number at the beginning of a run.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class CubeRoot(StepSchedule):
    ...     name = "cube_root"
    ...     def factor(self, k):
    ...         return (k + 1) ** (-1 / 3)
    >>> CubeRoot(0.1)(7)
    0.05
    """

    name: ClassVar[str] = ""
    start: float | str = "auto"

    def __post_init__(self) -> None:
        for name, value in settings(self).items():
            if name != "start" or value not in WORDS:
                check.number(value, f"{self.name}: {name}", above=0)

    def factor(self, k: int) -> float:
        """Return the factor :math:`c_k` of step k = 0, 1, ..."""
        raise NotImplementedError

    def __call__(self, k: int) -> float:
        """The step size of step k."""
        if isinstance(self.start, str):
            raise ValueError(
                f"{self.name}: start is {self.start!r}, which only solve() replaces by a number: "
                "give a number"
            )
        return self.start * self.factor(k)

    def starting_at(self, start: float) -> StepSchedule:
        """Return the same schedule with another start value."""
        return replace(self, start=float(start))

    def __str__(self) -> str:
        shown = (f"{name}={value}" for name, value in settings(self).items())
        return f"{self.name}({', '.join(shown)})"


@dataclass(frozen=True)
class Constant(StepSchedule):
    r"""Constant step size, :math:`\alpha_k = \alpha_0`; useful within `WarmUp`.

    Examples
    --------
    >>> Constant(0.1)(1000)
    0.1
    """

    name: ClassVar = "constant"

    def factor(self, k: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Inverse(StepSchedule):
    r"""Step size that decreases like 1/k, :math:`\alpha_k = \alpha_0 / (1 + k / \tau)`.

    Parameters
    ----------
    start : float or {"auto", "safe"}
    delay : float
        :math:`\tau`, the step at which half of `start` is left.  With 1, :math:`\alpha_k = \alpha_0
        / (k + 1)`: the first steps are so much larger than the others that "auto" predicts the
        error less well.

    Examples
    --------
    >>> [Inverse(1.0, delay=1)(k) for k in (0, 1, 9)]
    [1.0, 0.5, 0.1]
    """

    name: ClassVar = "inverse"
    delay: float = 100

    def factor(self, k: int) -> float:
        return 1 / (1 + k / self.delay)


@dataclass(frozen=True)
class InverseSqrt(StepSchedule):
    r"""Step size that decreases like 1/sqrt(k), :math:`\alpha_k = \alpha_0 / \sqrt{1 + k / \tau}`.

    Parameters
    ----------
    start : float or {"auto", "safe"}
    delay : float
        :math:`\tau`

    Examples
    --------
    >>> [InverseSqrt(1.0, delay=1)(k) for k in (0, 3, 99)]
    [1.0, 0.5, 0.1]
    """

    name: ClassVar = "inverse_sqrt"
    delay: float = 100

    def factor(self, k: int) -> float:
        return 1 / math.sqrt(1 + k / self.delay)


@dataclass(frozen=True)
class StepDecay(StepSchedule):
    r"""Step size that is multiplied by `ratio` every `every` steps, :math:`\alpha_k = \alpha_0
    \rho^{\lfloor k / T \rfloor}`.

    Parameters
    ----------
    start : float or {"auto", "safe"}
    ratio : float
        :math:`\rho`
    every : float
        T

    Examples
    --------
    >>> [StepDecay(1.0, 0.5, every=100)(k) for k in (0, 99, 100, 250)]
    [1.0, 1.0, 0.5, 0.25]
    """

    name: ClassVar = "step"
    ratio: float = 0.5
    every: float = 1000

    def factor(self, k: int) -> float:
        return float(self.ratio ** (k // self.every))


@dataclass(frozen=True)
class Cosine(StepSchedule):
    r"""Half a period of a cosine, from `start` to `end` times `start` in `steps` steps, and
    constant afterwards.

    .. math:: \alpha_k = \alpha_0 \bigl(e + \tfrac{1 - e}{2} (1 + \cos(\pi \min(k / T, 1)))\bigr)

    Parameters
    ----------
    start : float or {"auto", "safe"}
    steps : float
        T
    end : float
        e > 0

    Examples
    --------
    >>> [round(Cosine(1.0, steps=100)(k), 3) for k in (0, 50, 100, 200)]
    [1.0, 0.505, 0.01, 0.01]
    """

    name: ClassVar = "cosine"
    steps: float = 1000
    end: float = 0.01

    def factor(self, k: int) -> float:
        return self.end + (1 - self.end) / 2 * (1 + math.cos(math.pi * min(k / self.steps, 1.0)))


@dataclass(frozen=True)
class WarmUp(StepSchedule):
    r"""Linear growth to `start` in the first `steps` steps; then another schedule, which starts at
    `start` as well.

    .. math:: \alpha_k = \alpha_0 (k + 1) / T \;\; (k < T), \qquad \alpha_k = \alpha_0 c_{k - T} \;\; (k \ge T)

    Parameters
    ----------
    start : float or {"auto", "safe"}
    steps : float
        T
    then : StepSchedule or str
        Schedule of the steps after these, such as `Cosine(steps=2000)` or "cosine(steps=2000)"; its
        own start is not used.

    Examples
    --------
    >>> [WarmUp(0.4, steps=4)(k) for k in (0, 1, 3, 100)]
    [0.1, 0.2, 0.4, 0.4]
    >>> WarmUp(0.4, steps=4, then=Inverse(delay=1))(5)
    0.2
    """

    name: ClassVar = "warm_up"
    steps: float = 100
    then: StepSchedule | str = "constant"

    def __post_init__(self) -> None:
        then = parsed(self.then) if isinstance(self.then, str) else self.then
        if not isinstance(then, StepSchedule):
            raise ValueError(
                f"{self.name}: then is {self.then!r}, expected a schedule such as "
                f"{', '.join(SCHEDULES)}"
            )
        object.__setattr__(self, "then", then.starting_at(1.0))
        replace(Inverse(self.start), delay=self.steps)  # checks both numbers

    def factor(self, k: int) -> float:
        if k < self.steps:
            return (k + 1) / math.ceil(self.steps)
        return self.then(k - math.ceil(self.steps))  # type: ignore[operator]


SCHEDULES: dict[str, type[StepSchedule]] = {
    made.name: made for made in (Constant, Inverse, InverseSqrt, StepDecay, Cosine, WarmUp)
}
"""The schedules by the names that experiment files use."""


def parsed(text: str) -> StepSchedule:
    """Return the schedule that `text` describes: "inverse", "cosine(0.1, steps=2000)",
    "warm_up(auto, 100, then=cosine(steps=2000))".

    Raises
    ------
    ValueError

    Examples
    --------
    >>> parsed("step(0.1, ratio=0.5, every=100)")
    StepDecay(start=0.1, ratio=0.5, every=100)
    >>> str(parsed("inverse"))
    'inverse(start=auto, delay=100)'
    """
    try:
        schedule = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        unread = "it cannot be read as name(start, parameter=value)"
        reason = unread if isinstance(error, SyntaxError) else str(error).replace(".__init__()", "")
        raise ValueError(
            f"{text!r} is not a schedule: {reason}; expected one of {', '.join(SCHEDULES)}, such "
            "as "
            "inverse(0.1) or cosine(0.1, steps=2000)"
        ) from None
    if not isinstance(schedule, StepSchedule):
        raise ValueError(
            f"{text!r} is not a schedule, expected one of {', '.join(SCHEDULES)}, such as "
            "inverse(0.1)"
        )
    return schedule


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant() | ast.UnaryOp(operand=ast.Constant()):
            return ast.literal_eval(node)
        case ast.Name(id=word):
            return word if word in WORDS else _made(word)
        case ast.Call(func=ast.Name(id=word)):
            return _made(
                word,
                *map(_value, node.args),
                **{str(pair.arg): _value(pair.value) for pair in node.keywords},
            )
    raise TypeError(f"it contains {ast.unparse(node)!r}")


def _made(name: str, *args: Any, **options: Any) -> StepSchedule:
    known = [
        field.name for field in fields(SCHEDULES[check.known_name(name, SCHEDULES, "schedule")])
    ]
    for option in options:
        check.known_name(option, known, f"parameter of the schedule {name}")
    return SCHEDULES[name](*args, **options)
