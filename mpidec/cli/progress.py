"""Progress of a run as a bar on a terminal or as lines in a log; printed by rank 0."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

COLUMNS = ("objective", "gradient_norm", "consensus", "error")
Describe = Callable[[Mapping[str, Any]], str]
LAUNCHERS = ("mpirun", "mpiexec", "prterun", "orterun", "srun")


class Silent:
    """No progress output."""

    def __call__(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        """Report that `step` of `steps` steps are done, with these metrics."""

    def note(self, line: str) -> None:
        """Show a line before the first step."""

    def close(self) -> None:
        """End the progress output and restore the terminal."""


class Lines(Silent):
    """Progress in lines of metrics: one per tenth of the steps or per half minute, and at most
    one in two seconds.
    """

    SHORTEST, LONGEST = 2.0, 30.0  # seconds between two lines

    def __init__(self, file: TextIO | None = None, describe: Describe | None = None):
        self.file, self.describe = file or sys.stdout, describe or brief
        self.began = self.last = time.monotonic()
        self.start = self.printed = -1

    def note(self, line: str) -> None:
        print(f"{line}\n", end="", file=self.file, flush=True)

    def __call__(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        if self.start < 0:
            self.start = self.printed = step
        now = time.monotonic()
        tenth = 10 * (step - self.printed) >= steps - self.start
        if now - self.last >= self.LONGEST or (tenth and now - self.last >= self.SHORTEST):
            self.last, self.printed = now, step
            text = self.describe(metrics)
            print(
                f"step {step}/{steps}  {text}{'  ' * bool(text)}{now - self.began:.0f} s\n",
                end="",
                file=self.file,
                flush=True,
            )


class Bar(Silent):
    """Progress bar, redrawn at most ten times a second."""

    PERIOD = 0.1

    def __init__(
        self, file: TextIO | None = None, width: int = 80, describe: Describe | None = None
    ):
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self.last, self.describe = 0.0, describe or shortest
        columns = (
            BarColumn(None),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
        )
        console = Console(file=file or sys.stdout, force_terminal=True, width=width)
        self.rich = Progress(*columns, console=console, auto_refresh=False, transient=True)
        self.rich.start()
        self.task = self.rich.add_task("", total=None)

    def note(self, line: str) -> None:
        self.rich.console.print(line, highlight=False)

    def __call__(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        now = time.monotonic()
        if now - self.last >= self.PERIOD or step >= steps:
            self.last = now
            text = self.describe(metrics)
            self.rich.update(self.task, total=steps, completed=step, description=text, refresh=True)

    def close(self) -> None:
        self.rich.stop()


def progress(kind: str, describe: Describe | None = None) -> Silent:
    """Return a progress display: "bar", "lines", "none", or "auto", a bar on a terminal and lines
    elsewhere.

    `describe` returns the metrics of a step as a line.
    """
    width = terminal() if kind in ("auto", "bar") else None
    if kind == "auto":
        kind = "lines" if width is None else "bar"
    if kind == "bar":
        return Bar(width=width or 80, describe=describe)
    return Lines(describe=describe) if kind == "lines" else Silent()


def terminal() -> int | None:
    """Return the width of the terminal that shows stdout, directly or through mpirun; None if there
    is no terminal.

    Under a launcher, its own stdout decides: Open MPI gives its ranks a terminal even in a batch
    job.
    """
    try:
        process = os.getppid()
        while process > 1:
            stat = Path(f"/proc/{process}/stat").read_text()
            name, parent = (
                stat[stat.index("(") + 1 : stat.rindex(")")],
                int(stat[stat.rindex(")") + 2 :].split()[1]),
            )
            if name.startswith(LAUNCHERS):
                device = os.readlink(f"/proc/{process}/fd/1")
                if not device.startswith(("/dev/pts/", "/dev/tty")):
                    return None
                descriptor = os.open(device, os.O_RDONLY | os.O_NOCTTY)
                try:
                    return os.get_terminal_size(descriptor).columns or 80
                finally:
                    os.close(descriptor)
            process = parent
        if sys.stdout.isatty():
            return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        pass
    return None


def brief(metrics: Mapping[str, Any], names: Sequence[str] = COLUMNS) -> str:
    """Return the metrics of one step as one line."""
    return "  ".join(
        f"{name.replace('_norm', '')} {float(metrics[name]):.2e}"
        for name in names
        if name in metrics
    )


def shortest(metrics: Mapping[str, Any]) -> str:
    """Return the error of one step, or else its objective."""
    return brief(metrics, COLUMNS[-1:] if "error" in metrics else COLUMNS[:1])
