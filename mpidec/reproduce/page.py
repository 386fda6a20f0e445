"""One page of all experiments in a folder."""

from __future__ import annotations

import os
import platform

from ..cli import plural
from .catalogue import EXPERIMENTS
from .store import read

HEAD = """\
# Published experiments

What papers show, repeated by `mpidec reproduce --all`, with a verdict for each published figure."""


def write_page(folder: str) -> None:
    """Write ``index.md``: the sections of all experiments that are in the folder."""
    sections, seconds = [], 0.0
    for name in EXPERIMENTS:
        section = os.path.join(folder, f"{name}.md")
        if os.path.exists(section):
            with open(section, encoding="utf-8") as file:
                sections.append(file.read())
            seconds += read(os.path.join(folder, f"{name}.h5"))[1]
    cost = (
        f"{plural(len(sections), 'experiment')}, {plural(round(seconds / 60, 1), 'minute')} of one "
        f"core ({platform.machine()}, Python {platform.python_version()})."
    )
    with open(os.path.join(folder, "index.md"), "w", encoding="utf-8") as file:
        file.write("\n\n".join([HEAD, cost, *sections]))
