"""What a solver needs of the mixing matrix, of the problem and of the record; and the values
that its parameters may have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from .. import _validation as check

WORDS = {
    "functions": ("grad", "value", "prox", "argmin", "sample", "motion"),
    "kinds": ("doubly", "row", "column", "pair"),
}


@dataclass(frozen=True)
class Needs:
    r"""What a solver needs to work.

    Parameters
    ----------
    functions : tuple of str
        The methods of the functions (`mpidec.protocols.Functions`) that `Solver.ask` and a step
        call: "grad", "value", "prox", "argmin", "sample", "motion".  A problem with a term (an l1
        norm, a constraint) is refused unless "prox" or "argmin" is among them.
    kinds : tuple of str
        The kinds of `W` that the solver converges with: "doubly", "row" or "column" stochastic, or
        "pair", a row-stochastic `W.R` and a column-stochastic `W.C`.
    symmetric : bool
        Whether the solver diverges, or converges to another point, unless `W` is symmetric: others
        are refused.
    positive : bool
        Whether the solver divides by weights that `W` mixes: they remain > 0 if `W` is doubly
        stochastic or has no negative entries.
    samples : bool
        Whether the average over a sample of the agents may take the place of `W`
        (`topology.sampled_average`).
    least_delta : float
        Contraction parameter of a codec below which the solver may diverge; 0 if any codec with
        error feedback will do.
    uncompressed : str
        Of a solver for compressed communication: the method that it is without a codec.
    graph : str
        Name of a topology that suits the solver, the default on the command line.
    exchange : bool
        Whether the solver sends a row of its own to each neighbour (`W.exchange`), which excludes
        mixers with acceleration or error feedback.
    per_edge : tuple of str
        Fields of the state with a row per edge into the local agents, which a checkpoint stores
        edge by edge.

    Examples
    --------
    >>> Needs(functions=("grad", "prox")).term, Needs().term
    (True, False)
    >>> Needs(functions=("gard",))
    Traceback (most recent call last):
    ValueError: ... is 'gard', expected one of grad, ..., motion (did you mean grad?)
    """

    functions: tuple[str, ...] = ("grad",)
    kinds: tuple[str, ...] = ("doubly",)
    symmetric: bool = False
    positive: bool = False
    samples: bool = False
    least_delta: float = 0.0
    uncompressed: str = ""
    graph: str = "symmetric_exponential"
    exchange: bool = False
    per_edge: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, known in WORDS.items():
            for word in vars(self)[name]:
                check.choice(word, f"a word of Needs.{name}", known)

    @property
    def problem(self) -> bool:
        """Whether the solver asks anything of the problem."""
        return bool(self.functions)

    @property
    def argmin(self) -> bool:
        """Whether the solver takes proximal points of whole functions."""
        return "argmin" in self.functions

    @property
    def data(self) -> bool:
        """Whether the solver takes the samples of the agents, in place of gradients."""
        return "sample" in self.functions

    @property
    def term(self) -> bool:
        """Whether the solver takes proximal steps of the term of a problem."""
        return self.argmin or "prox" in self.functions


@dataclass(frozen=True)
class Within:
    """Annotation of a parameter that is a finite number within bounds.

    Parameters
    ----------
    least, above, most, below : float
        The number is >= `least`, > `above`, <= `most` and < `below`.

    Examples
    --------
    >>> from typing import Annotated
    >>> share: Annotated[float, Within(above=0.0, most=1.0)] = 0.5
    """

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf


class OneOf(tuple[str, ...]):
    """Annotation of a parameter that is one of several words.

    Examples
    --------
    >>> from typing import Annotated
    >>> order: Annotated[str, OneOf("atc", "cta")] = "atc"
    """

    def __new__(cls, *words: str) -> OneOf:
        return super().__new__(cls, words)


Positive = Annotated[float, Within(above=0.0)]
Factor = Annotated[float, Within(least=0.0, below=1.0)]
"""Of a momentum."""
