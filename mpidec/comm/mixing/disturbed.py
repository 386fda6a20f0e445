"""What can be made of mixers that change the rows on their way."""

from __future__ import annotations

import numpy as np

from .edgewise import Edgewise
from .lossy import Lossy
from .operator import Lost, RobustRule
from .repeated import Repeated
from .robust import Robust


class Disturbed(Edgewise):
    """A mixer that changes rows on their way over the edges, of which lossy, robust and repeated ones are made."""

    def lossy(
        self, messages: float | np.ndarray | Lost, *, seed: int = 0, fill: str = "renormalize"
    ) -> Lossy:
        """This mixer with messages that are lost; see `Mixer.lossy`."""
        return Lossy(self, messages, seed, fill)

    def robust(
        self,
        rule: str | RobustRule,
        *,
        tau: float | None = None,
        delta: float | None = None,
        trim: int | None = None,
    ) -> Robust:
        """This mixer with a robust rule in place of the average; see `Mixer.robust`."""
        return Robust.of(self, rule, tau, delta, trim)

    def repeat(self, S: int) -> Repeated:
        """S mixings in one step, each disturbed anew; see `Mixer.repeat`."""
        return Repeated(self, S)
