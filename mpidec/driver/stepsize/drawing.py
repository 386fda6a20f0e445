"""Figure of a choice of a step size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def predictions(
    sizes: np.ndarray, predicted: np.ndarray, dropped: np.ndarray, chosen: float, quantity: str
) -> Figure:
    """The predictions of a `quantity` against the step sizes, on logarithmic axes, with those
    that `dropped` out.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8, 3.2), layout="constrained")
    panel = figure.subplots()
    finite, early = np.isfinite(predicted), dropped
    raced = finite & ~early
    panel.loglog(
        sizes[raced],
        predicted[raced],
        "o-",
        color="#0072B2",
        linewidth=1,
        markersize=4,
    )
    if early.any():  # on the axis: they have no prediction
        panel.plot(
            sizes[early],
            np.zeros(early.sum()),
            "x",
            color="#0072B2",
            markersize=5,
            clip_on=False,
            transform=panel.get_xaxis_transform(),
            label="dropped out",
        )
    for k, a in enumerate(sizes[~finite]):
        panel.axvline(
            a,
            color="0.85",
            linewidth=1,
            zorder=0,
            label="does not converge" if k == 0 else None,
        )
    panel.axvline(
        chosen,
        color="#D55E00",
        linestyle="--",
        linewidth=1,
        label=f"chosen: {chosen:.3g}",
    )
    panel.set_xlabel("step size")
    panel.set_ylabel(f"predicted {quantity}")
    panel.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9, columnspacing=1.2)
    return figure
