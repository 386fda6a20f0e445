"""Runs on a terminal, with curves, or as lines of a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ..cli import aligned
from .watched import WatchedFile

LEVELS = " ▁▂▃▄▅▆▇█"
_PLAIN = " _.-~=+*#"  # for terminals without these


class LiveView(Protocol):
    """Where runs are shown."""

    def show(self, files: Sequence[WatchedFile], news: Sequence[WatchedFile]) -> None:
        """Show all files, of which some have something new."""

    def close(self) -> None:
        """Restore the terminal."""


class TextView:
    """A line for each new record, and for the outcome of each file."""

    def __init__(self) -> None:
        self._shown: dict[str, int] = {}  # records of each path

    def show(self, files: Sequence[WatchedFile], news: Sequence[WatchedFile]) -> None:
        """Print the lines of the files with something new."""
        for file in news:
            steps = [] if file.run is None else file.run.metrics["step"].tolist()
            shown = self._shown.get(file.path, 0)
            first = shown if shown <= len(steps) else 0  # of a run that has begun anew
            metrics = file.metrics
            for place in range(first, len(steps)):
                values = [f"{name} {column[place]:.4g}" for name, column in metrics.items()]
                print("  ".join([f"{file.path}: step {steps[place]}", *values]), flush=True)
            self._shown[file.path] = len(steps)
            if file.over or file.run is None:
                print(f"{file.path}: {file.state}", flush=True)

    def close(self) -> None:
        """Nothing to restore."""


class Screen:
    """All files, drawn anew in place, with the last records and a curve of each metric.

    Parameters
    ----------
    width : int
        Columns of the terminal.
    records : int
        Records of each file that are shown.
    """

    def __init__(self, width: int, records: int):
        from rich.console import Console
        from rich.live import Live

        self._width, self._records = width, records
        console = Console(force_terminal=True, width=width, highlight=False, markup=False)
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="visible")
        self._live.start()

    def show(self, files: Sequence[WatchedFile], news: Sequence[WatchedFile]) -> None:
        """Draw all files."""
        from rich.text import Text

        lines = [line for file in files for line in described(file, self._width, self._records)]
        self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)

    def close(self) -> None:
        """Leave what has been drawn last."""
        self._live.stop()


def described(file: WatchedFile, width: int, records: int) -> list[str]:
    """Return the lines of a file on a terminal: its state, a curve of each metric, and its last
    records.
    """
    head = [file.path, f"  {file.state}"]
    if file.run is None or not len(file.run.metrics["step"]):
        return [*head, ""]
    encoding, metrics = (sys.stdout.encoding or "").lower(), file.metrics
    levels = LEVELS if encoding.startswith("utf") else _PLAIN
    names = max(map(len, metrics), default=0)
    curves = [
        f"  {name:<{names}}  {values[-1]:>9.3g}  {curve(values, max(width - names - 15, 8), levels)}"
        for name, values in metrics.items()
    ]
    columns = {"step": file.run.metrics["step"], **metrics}
    texts = [
        [name, *(f"{value:.4g}" if name != "step" else str(value) for value in values[-records:])]
        for name, values in columns.items()
    ]
    table = [f"  {line}" for line in aligned(list(zip(*texts)), ">" * len(texts))]
    return [*head, *curves, *table, ""]


def curve(values: np.ndarray, width: int, levels: str = LEVELS) -> str:
    """Return a curve of one line: of logarithms, without zeros, if no value is negative and they
    differ by more than a factor of 10.

    Examples
    --------
    >>> curve(np.array([1.0, 0.1, 0.01, 0.001]), 8), curve(np.array([0.5, np.nan, 1.0]), 8)
    ('█▆▃▁', '▁ █')
    """
    # the last value in each of at most `width` equal parts
    places = np.unique(np.linspace(0, len(values), min(width, len(values)) + 1).astype(int)[1:] - 1)
    heights = np.asarray(values, dtype=float)[places]
    known = heights[np.isfinite(heights)]
    positive = known[known > 0]
    if len(positive) and known.min() >= 0 and known.max() > 10 * positive.min():
        heights, known = np.log(np.where(heights > 0, heights, np.nan)), np.log(positive)
    if not len(known):
        return ""
    low, high = known.min(), known.max()
    scaled = (
        (heights - low) / (high - low) if high > low else np.where(np.isnan(heights), np.nan, 0)
    )
    top = len(levels) - 2
    return "".join(
        levels[1 + round(top * share)] if np.isfinite(share) else levels[0] for share in scaled
    )


def follow(files: Sequence[WatchedFile], view: LiveView, every: float) -> None:
    """Show the files until all runs are over, looking at them every so many seconds."""
    view.show(files, [file for file in files if file.look() or file.run is None])
    while not all(file.over for file in files):
        time.sleep(every)
        view.show(files, [file for file in files if file.look()])
