"""The timeline that a command writes, and its table of stragglers."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..cli import aligned, file_error
from ..comm.mixing import Network
from ..comm.runtime import on_all_ranks
from ..comm.timeline import Waited, gathered, prefix_of, table
from ..exceptions import ConfigError


def timeline_of(trace: str | None) -> str | None:
    """Return where the files of the ranks lie until they are merged, for `Network`.

    Raises
    ------
    ConfigError
        There is no such folder.
    """
    if trace is None:
        return None
    if not os.path.isdir(os.path.dirname(trace) or os.curdir):
        raise ConfigError(f"trace is {trace}, expected a file in a folder that exists")
    return prefix_of(trace)


def traced(net: Network, trace: str | None) -> list[Waited] | None:
    """Merge the files of all ranks, and delete them; what each rank waited, on rank 0.  Collective.

    Raises
    ------
    InputError
        On all ranks: the timeline cannot be written.  The files of the ranks are still there then.
    """
    timeline = net.context.timeline
    if trace is None or timeline is None:
        return None
    try:
        with on_all_ranks(net):
            waited = gathered(net.comm, timeline.file, trace)
    except OSError as error:
        raise file_error(
            OSError(error.errno, f"{trace}: {error.strerror}"),
            f"; merge the timelines of the ranks: mpidec trace merge {prefix_of(trace)}",
        ) from error
    timeline.file.remove()
    return waited


def stragglers(waited: Sequence[Waited], trace: str) -> str:
    """Return where the timeline is, and the table of stragglers."""
    return "\n".join(
        [f"timeline {trace}, for https://ui.perfetto.dev", *aligned(table(waited), "><<>")]
    )
