"""What all solvers share: the protocol, and what they ask of `W`."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np

_LARGE = 1500                                       # agents up to which the spectrum is worth computing for a warning


class Solver:
    """The protocol of a solver; each one is a frozen dataclass of its hyper-parameters.

    A solver is the paper's equations on a stack of rows, one row per agent.  It is handed the gradients `G` and the
    operator `W`, and knows nothing of MPI, files or clocks::

        s = solver.init(X, W)
        for k in range(steps):
            G = gradient(solver.point(s), k)
            s = solver.step(s, G, W.at(k))

    A state is a NamedTuple with the field `X`, the iterate.  Its other fields are arrays with a row per local agent, arrays
    with a row per edge into the local agents (named in `per_edge`), or plain numbers: all that a restart needs.

    Attributes
    ----------
    kinds : tuple of str
        The kinds of `W` that the solver converges with: "doubly", "row" or "column" stochastic.
    uses : {"gradient", "prox", "nothing"}
        What `step` wants of the problem at `point(s)`, as its argument `G`: the gradients; the proximal points
        :math:`\\arg\\min_x f_i(x) + \\|x - v_i\\|^2 / (2 \\alpha)`; or nothing (None).
    per_edge : tuple of str
        Fields of the state with a row per edge.
    """

    kinds: ClassVar[tuple[str, ...]] = ("doubly",)
    uses: ClassVar[str] = "gradient"
    per_edge: ClassVar[tuple[str, ...]] = ()
    step_size: Any

    def __post_init__(self) -> None:
        positive_step(self)

    def init(self, X: np.ndarray, W: Any = None) -> Any:
        """The state at the iterate `X`, shape `(m, d)`; only solvers that say so look at `W`."""
        raise NotImplementedError

    def step(self, s: Any, G: np.ndarray, W: Any) -> Any:
        """The state after one step, from the gradients `G`, shape `(m, d)`, at `point(s)`, with the operator `W` of the step."""
        raise NotImplementedError

    def point(self, s: Any) -> np.ndarray:
        """The rows at which the next step wants its gradients, shape `(m, d)`."""
        return s.X

    def check(self, topology: Any) -> None:
        """Refuse a `W` that the solver cannot work with.

        Raises
        ------
        ValueError
            Naming what is wrong with the topology, and one that would do.
        """
        if topology.kind not in self.kinds:
            raise ValueError(f"{name_of(self)} needs a {' or '.join(self.kinds)} stochastic W, the {topology.name} topology is "
                             f"{topology.kind} stochastic; {REMEDIES[self.kinds[-1]]}")


REMEDIES = {"doubly": 'use weights="metropolis" on an undirected graph, or topology.exponential(n)',
            "column": 'use weights="push" on the same graph, or any doubly stochastic one, such as topology.ring(n)',
            "row": 'use weights="uniform" on the same graph, or any doubly stochastic one, such as topology.ring(n)'}


def name_of(solver: Any) -> str:
    """The class name of a solver: `ExactDiffusion`."""
    return type(solver).__name__


def positive_step(solver: Any, zero: bool = True) -> None:
    """Check `solver.step_size`: a finite number, not negative, perhaps zero.

    Raises
    ------
    ValueError
    """
    step = solver.step_size
    number = isinstance(step, (int, float, np.number)) and not isinstance(step, bool)
    if not number or not np.isfinite(step) or step < 0 or (step == 0 and not zero):
        raise ValueError(f"{name_of(solver)}: step_size is {step!r}, expected a finite number {'>=' if zero else '>'} 0")


def one_of(solver: Any, field: str, choices: tuple[str, ...]) -> None:
    """Check that a field of a solver is one of the words it may be.

    Raises
    ------
    ValueError
    """
    value = getattr(solver, field)
    if value not in choices:
        raise ValueError(f"{name_of(solver)}: {field} is {value!r}, expected one of {', '.join(choices)}")


def warn_unless_stable(solver: Any, topology: Any, roots: Any, remedy: str) -> None:
    """Warn when the recursion of the disagreement grows for an eigenvalue of `W`: sometimes that is studied on purpose.

    Parameters
    ----------
    roots : callable
        `roots(lam)`: the coefficients, highest power first, of the characteristic polynomial for the eigenvalue `lam`.
    """
    if topology.period != 1 or not 1 < topology.n <= _LARGE:
        return
    lams = np.linalg.eigvals(topology.W.toarray())
    lams = np.delete(lams, np.argmin(abs(lams - 1)))
    worst = max(lams, key=lambda lam: max(abs(np.roots(roots(lam)))))
    growth = max(abs(np.roots(roots(worst))))
    if growth > 1 + 1e-9:
        warnings.warn(f"{name_of(solver)} is unstable on the {topology.name} topology: W has the eigenvalue {worst:.3g}, for which "
                      f"the disagreement grows by {growth:.3g} a step; {remedy}", RuntimeWarning, stacklevel=4)
