"""Figure 5: the constants m and p in the rate of RelaySGD, for trees."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..._validation import Array
from ...topology import Topology
from ..drawing import curves
from ..experiment import Experiment, Results
from ..verdict import About, Line, holds, within
from .correction import TREES, distances

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[str, int]  # tree, n
SIZES = (2, 3, 4, 6, 8, 12, 16)
RATIOS: Mapping[str, tuple[float, ...]] = {
    "chain": (9.35241, 19.86851, 32.91653, 63.09101, 91.23639, 117.4017, 150.88198),
    "binary tree": (9.35241, 19.86851, 23.22126, 39.79983, 58.52488, 88.37374, 114.66733),
    "star": (9.35241, 19.86851, 23.22126, 29.78132, 36.51642, 48.99042, 60.10689),
}


def delayed(tree: Topology) -> Array:
    r"""Return the matrix of a step on :math:`(x^t, x^{t-1}, \dots, x^{t-\tau})`, where tau is the
    diameter: the new x is the mean of all workers', those at h hops from h steps ago.

    Examples
    --------
    >>> from mpidec.topology import chain
    >>> delayed(chain(2))
    array([[0.5, 0. , 0. , 0.5],
           [0. , 0.5, 0.5, 0. ],
           [1. , 0. , 0. , 0. ],
           [0. , 1. , 0. , 0. ]])
    """
    n, hops = tree.n, distances(tree).astype(int)
    What = np.eye((hops.max() + 1) * n, k=-n)
    i, j = np.indices((n, n))
    What[i, hops * n + j] = 1 / n
    return What


def rate(tree: Topology) -> tuple[int, float]:
    r"""Return m < 100 and p with :math:`\|\hat W^m - \hat W^\infty\| = (1 - p)^m \|\hat W - \hat
    W^\infty\|` and the least m / p.
    """
    What = delayed(tree)
    D = What - np.linalg.matrix_power(What, 2**20)
    whole, power = np.linalg.norm(D, 2), D
    best, since = (0, math.nan), 0
    for m in range(2, 100):
        power = power @ D
        p = 1 - (np.linalg.norm(power, 2) / whole) ** (1 / m)
        since += 1
        if p > 0 and not m / p >= best[0] / best[1]:
            best, since = (m, float(p)), 0
        if since > 10 and best[0]:
            break
    return best


@dataclass(frozen=True)
class RateConstants(Experiment[Cell]):
    """The least m / p of each tree."""

    about: ClassVar = About(
        name="relaysgd-fig5",
        source="Vogels et al., NeurIPS 2021, Appendix, Figure 5",
        shows="m / p, which slows RelaySGD down, grows linearly with n on trees",
        minutes=0.2,
        quick={"sizes": (4, 8)},
        notes=(
            "The figure shows curves without numbers: published here is what its program gives.",
        ),
    )

    sizes: tuple[int, ...] = SIZES

    def cells(self) -> Iterable[Cell]:
        """Each tree and n."""
        return product(TREES, self.sizes)

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """m and p."""
        m, p = rate(TREES[cell[0]](cell[1]))
        return {"m": m, "p": p}

    def judge(self, results: Results[Cell]) -> Iterator[Line]:
        """Each ratio, and its growth from n / 2 to n."""
        ratios = {cell: float(found["m"] / found["p"]) for cell, found in results.items()}
        for (tree, n), ratio in ratios.items():
            what = f"{tree}, n = {n}: m / p (m = {results[tree, n]['m']:g})"
            known = dict(zip(SIZES, RATIOS[tree])).get(n)
            yield within(what, known, ratio, 1e-3) if known else Line(what, None, ratio)
        many = max(self.sizes)
        few = max((n for n in self.sizes if 4 <= n <= many / 2), default=many)
        for tree in TREES if few < many else ():
            power = math.log(ratios[tree, many] / ratios[tree, few]) / math.log(many / few)
            what = f"{tree}: m / p grows from n = {few} to {many} as n to the power of"
            yield holds(what, power <= 1.1, power, "at most 1.1")

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """m / p against n."""
        lines = {
            tree: (self.sizes, [results[tree, n]["m"] / results[tree, n]["p"] for n in self.sizes])
            for tree in TREES
        }
        curves(figure.add_subplot(), lines, "number of workers", "m / p", log="", marked=True)
