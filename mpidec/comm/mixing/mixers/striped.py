"""Mixer of several graphs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ...runtime import Context, Pending
from ...transport import Counters
from ..base.packing import RowsT
from ..codecs import Codec
from ..phases.striped import StripedPhase
from .mixer import Mixer

if TYPE_CHECKING:
    from ....topology import Striped


class StripedMixer(Mixer):
    """The operator of several graphs at once, for a `mpidec.topology.Striped`; made by
    `Network.mixer`.

    Notes
    -----
    Sent per call: the columns c, c + K, ... of a row to each neighbour in graph c, of K graphs.
    All graphs act in each step.
    """

    def __init__(self, context: Context, topology: Striped, counts: Counters | None = None):
        super().__init__(context, topology, counts)
        self.striped = topology

    def at(self, k: int) -> StripedPhase:  # type: ignore[override]  # its parts are phases
        """Return the operator of step `k`: all graphs act in each step."""
        parts = [self.phase(stripe) for stripe in range(self.striped.period)]
        return StripedPhase(parts, k, self.at, self.agents)

    def __call__(self, X: RowsT, out: RowsT | None = None) -> RowsT:
        """Mix the rows `X`, shape `(m, ...)`."""
        return self.at(0)(X, out)

    def start(self, X: RowsT, out: RowsT | None = None) -> Pending:
        """Begin to mix `X`; `wait()` on the result returns the mixed rows."""
        return self.at(0).start(X, out)

    def compress(self, codec: str | Codec, **options: Any) -> NoReturn:
        """Raise: a codec encodes whole rows.

        Raises
        ------
        ValueError
        """
        raise ValueError(
            f"compress: the rows are divided among the {self.striped.period} graphs of "
            f"{self.striped.name}, and a codec "
            "encodes whole rows: use one graph, such as topology.binary_tree(n)"
        )
