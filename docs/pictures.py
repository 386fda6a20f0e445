"""Write the pictures of the tutorials and of the published experiments into the gallery, as links to their pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import notebooks

from mpidec.reproduce import EXPERIMENTS

HERE = Path(__file__).resolve().parent
MARKS = {
    "<!-- pictures of the tutorials -->": "tutorials",
    "<!-- pictures of the published experiments -->": "experiments",
}


def gallery(text: str) -> str:
    """Return the text of docs/guide/gallery.md with pictures in place of its marks."""
    found = {"tutorials": tutorials, "experiments": experiments}
    for mark, name in MARKS.items():
        text = text.replace(mark, "\n\n".join(found[name]()))
    return text


def sheet(pictures: Iterator[str]) -> str:
    """Return a sheet of pictures."""
    return "\n".join([":::{container} gallery", "\n\n".join(pictures), ":::"])


def tutorials() -> Iterator[str]:
    """Yield the pictures of each tutorial, below its name."""
    for notebook in sorted(notebooks.SOURCE.glob("*.ipynb")):
        page, title = f"../tutorials/{notebook.stem}.md", notebooks.title(notebook)
        names = sorted(
            (path.name for path in notebooks.PAGES.glob(f"{notebook.stem}_*.png")),
            key=lambda name: [int(number) for number in re.findall(r"\d+", name)],
        )
        yield f"[{title}]({page})"
        yield sheet(f"[![Picture of {title}](../tutorials/{name})]({page})" for name in names)


def experiments() -> Iterator[str]:
    """Yield the figures of the published experiments that are stored, with their names."""
    stored = [name for name in EXPERIMENTS if (HERE / "reproduced" / f"{name}.png").exists()]
    yield sheet(
        f"[![{EXPERIMENTS[name].about.shows}](../reproduced/{name}.png) {name}]"
        f"(../reproduced/index.md#{name})"
        for name in stored
    )
