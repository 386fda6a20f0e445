"""Table 3: CECA with six agents, round by round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import topology
from ...driver.internals import iterate
from ...solvers import DSGDCECA
from ..drawing import heat
from ..experiment import Experiment, Results, alone
from ..verdict import PRINTED, About, Line, holds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[int]  # ports
FIRST, LAST = ((1, 2, 3, 4, 5, 6), (0,) * 6), ((3.5,) * 6, (4, 3.8, 3.6, 3.4, 3.2, 3))
TABLE = {  # x and y of the agents after each round
    2: (
        FIRST,
        ((3.5, 1.5, 2.5, 3.5, 4.5, 5.5), (6, 1, 2, 3, 4, 5)),
        ((4, 3, 2, 3, 4, 5), (5.5, 3.5, 1.5, 2.5, 3.5, 4.5)),
        LAST,
    ),
    1: (
        FIRST,
        ((1.5, 1.5, 3.5, 3.5, 5.5, 5.5), (2, 1, 4, 3, 6, 5)),
        ((2, 3, 4, 3, 4, 5), (2.5, 3.5, 4.5, 2.5, 3.5, 4.5)),
        LAST,
    ),
}


@dataclass(frozen=True)
class WorkedExample(Experiment[Cell]):
    """x and y of agents that start at 1, ..., 6."""

    about: ClassVar = About(
        name="ceca-table3",
        source="Ding et al., ICML 2023, Appendix B.1, Table 3",
        shows="CECA with 6 agents has the mean 3.5 after 3 rounds",
        minutes=0.1,
    )

    ports: tuple[int, ...] = (2, 1)

    def cells(self) -> Iterable[Cell]:
        """Two ports and one."""
        return ((ports,) for ports in self.ports)

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """x and y after each round."""
        (ports,) = cell
        x = np.arange(1.0, 7.0).reshape(6, 1)
        solver, found = DSGDCECA(0.0), []
        with alone(6) as net:
            W = net.mixer(topology.ceca(6, ports=ports))
            s = solver.State(x, np.zeros_like(x), 1)
            rounds = iterate(solver, None, W, s, steps=len(TABLE[ports]) - 1)
            found += [(now.X.ravel(), now.Y.ravel()) for now in (s, *rounds)]
        return {"values": found}

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """The largest difference of the twelve numbers of each round."""
        for (ports,), found in results.items():
            for k, (here, published) in enumerate(zip(found["values"], TABLE[ports])):
                worst = float(np.abs(here - published).max())
                what = f"{ports}P, round {k}: largest difference"
                yield holds(what, worst <= 1e-12, worst, "1e-12", "12 numbers", PRINTED)

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """x of each agent after each round."""
        panels = figure.subplots(1, len(results), squeeze=False)[0]
        for axes, ((ports,), found) in zip(panels, results.items()):
            x = found["values"][:, 0]
            heat(axes, x, "agent", "round", title=f"x, {ports}P")
            for (k, i), value in np.ndenumerate(x):
                axes.text(i, k, f"{value:g}", ha="center", va="center", color="white", fontsize=7)
