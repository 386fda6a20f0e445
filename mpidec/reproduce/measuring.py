"""Measurement of all cells of an experiment, shared among ranks, and the report of their
results.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from .. import _style
from .._words import command_of_extras
from ..comm.runtime import MPI, interrupts, on_root
from ..sweep.internals import WorkQueue
from .experiment import Arrays, Experiment
from .store import Store, key, read
from .verdict import Report

OnCell = Callable[[str], None]


class Measured(NamedTuple):
    """What a rank reports of a cell: what it gives, or why it has ended without."""

    number: int
    arrays: Arrays
    seconds: float
    error: BaseException | None = None


def measure(
    experiment: Experiment[Any],
    path: str,
    *,
    comm: MPI.Intracomm | None = None,
    force: bool = False,
    on_cell: OnCell = lambda text: None,
    on_begin: Callable[[int], None] = lambda number: None,
) -> None:
    """Measure the cells that the file lacks, each on one rank, and write them into it.

    Parameters
    ----------
    experiment : Experiment
    path : str
        HDF5 file; one that exists is completed.
    comm : Comm, optional
        By default MPI.COMM_WORLD; the numbers are the same on any number of ranks.
    force : bool
        Whether an existing file is replaced.
    on_cell : callable (line), optional
        Called on rank 0 after each cell.
    on_begin : callable (number), optional
        Called on rank 0 with the number of cells that are to be measured.

    Raises
    ------
    InputError
        If the file has been made with other settings.
    KeyboardInterrupt
        On all ranks, after the cells in work; the file is complete up to there.

    Notes
    -----
    Collective over `comm`.

    Examples
    --------
    >>> import os, tempfile
    >>> from mpidec import reproduce
    >>> experiment = reproduce.EXPERIMENTS["relaysgd-fig6"](sizes=(4, 8))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "fig6.h5")
    ...     reproduce.measure(experiment, path)
    ...     reproduce.publish(experiment, path).summary
    '6 of 6 lines agree (6 closed forms)'
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    errors: list[BaseException] = []
    with ExitStack() as stack:
        stores: list[Store] = []

        def open_store() -> list[tuple[object, ...]]:
            stores.append(stack.enter_context(closing(Store(path, experiment, force))))
            done, _ = stores[0].read()
            cells = [cell for cell in experiment.cells() if key(cell) not in done]
            on_begin(len(cells))
            return cells

        def on_report(report: Measured) -> None:
            if report.error is not None:
                errors.append(report.error)
                return
            cell = todo[report.number]
            try:
                stores[0].put(cell, report.arrays, report.seconds)
                on_cell(
                    f"{experiment.about.name}: {', '.join(map(str, cell))}: {report.seconds:.1f} s"
                )
            except OSError as error:  # the other ranks are in their cells
                remedy = f"{error.strerror or error}: with free space the same command continues"
                errors.append(OSError(error.errno, remedy, path))

        todo = on_root(comm, open_store)
        interrupted = stack.enter_context(interrupts())
        queue = stack.enter_context(WorkQueue[Measured](comm, 1, on_report))
        queue.map(
            range(len(todo)),
            lambda number: _measured(experiment, number, todo[number], interrupted),
            lambda report: bool(report.error or errors),
        )
    on_root(comm, _raise_first, errors)
    if comm.allreduce(interrupted(), MPI.LOR):
        raise KeyboardInterrupt


def _measured(
    experiment: Experiment[Any],
    number: int,
    cell: tuple[object, ...],
    interrupted: Callable[[], bool],
) -> Measured:
    began = time.perf_counter()
    try:
        with threadpool_limits(1):
            arrays = {
                name: np.asarray(values, float) for name, values in experiment.measure(cell).items()
            }
        # What it has measured may be cut short.
        if interrupted():
            raise KeyboardInterrupt
    except (Exception, KeyboardInterrupt) as error:
        return Measured(number, {}, 0.0, error)
    return Measured(number, arrays, time.perf_counter() - began)


def _raise_first(errors: list[BaseException]) -> None:
    failures = [error for error in errors if isinstance(error, Exception)]
    if failures and isinstance(failures[0], ModuleNotFoundError):
        remedy = f"{command_of_extras('torch,data,plot')} has all that experiments need"
        raise ModuleNotFoundError(f"{failures[0]}: {remedy}") from failures[0]
    if failures:
        raise failures[0]


def publish(experiment: Experiment[Any], path: str) -> Report:
    """Return the report of a complete file, and write it beside the file: text, CSV, a section in
    Markdown and the figure.

    Parameters
    ----------
    experiment : Experiment
    path : str
        HDF5 file that `measure` has completed.

    Examples
    --------
    See `measure`.

    >>> from mpidec import reproduce
    >>> reproduce.publish(reproduce.EXPERIMENTS["ceca-fig5"](), "none.h5")
    Traceback (most recent call last):
        ...
    KeyError: '6, 1, 100'
    """
    from matplotlib import rc_context
    from PIL import Image  # which Matplotlib needs, too

    found, _ = read(path)
    results = {cell: found[key(cell)] for cell in experiment.cells()}
    report = Report(experiment.about, list(experiment.judge(results)))
    with rc_context(_style.SCREEN):
        figure = _style.figure(figsize=(6.4, 3.6), layout="constrained")
        experiment.draw(results, figure)
        stem = os.path.splitext(path)[0]
        figure.savefig(f"{stem}.png", dpi=120, metadata={"Software": None})
    # A third of the size, with the same look.
    with Image.open(f"{stem}.png") as picture:
        picture.convert("RGB").quantize(64).save(f"{stem}.png", optimize=True)
    for suffix, text in (
        (".txt", f"{report}\n"),
        (".csv", report.csv()),
        (".md", report.markdown()),
    ):
        with open(f"{stem}{suffix}", "w", encoding="utf-8") as file:
            file.write(text)
    return report
