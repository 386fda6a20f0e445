"""The experiments by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from .. import _validation as check
from ..comm.runtime.mpi import MPI
from . import acid, ceca, relaysgd
from .tables import Table

EXPERIMENTS: dict[str, Callable[..., Table]] = {
    module.NAME: module.table for module in (relaysgd, ceca, acid)
}


def table(
    name: str,
    *,
    seeds: int = 3,
    quick: bool = False,
    comm: MPI.Intracomm | None = None,
    on_line: Callable[[str], None] = lambda line: None,
) -> Table:
    """Run an experiment and return its table.

    Parameters
    ----------
    name : {"relaysgd-table2", "ceca-table2", "acid-table4"}
    seeds : int
        Number of runs of each method.
    quick : bool
        Whether the runs are shortened to show the form of the table alone.
    comm : Comm, optional
        By default MPI.COMM_WORLD.
    on_line : callable (line), optional
        Called as soon as a row is complete.

    Raises
    ------
    ValueError
        For an unknown name, or if a package that the experiment needs is missing.

    Notes
    -----
    Collective over `comm`.

    Examples
    --------
    >>> table("mnist")
    Traceback (most recent call last):
        ...
    ValueError: unknown experiment 'mnist': expected one of relaysgd-table2, ceca-table2, acid-table4
    """
    name = check.component(name, EXPERIMENTS, "experiment")
    if not isinstance(seeds, int) or seeds < 1:
        raise ValueError(f"seeds is {seeds!r}, expected a whole number >= 1")
    for package, extra in (("torch", "torch"), ("sklearn", "data")):
        if find_spec(package) is None:
            raise ValueError(
                f"{name} needs {package}, which is not installed: pip install 'mpidec[{extra}]'"
            )
    return EXPERIMENTS[name](MPI.COMM_WORLD if comm is None else comm, seeds, quick, on_line)
