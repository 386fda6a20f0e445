"""Draw the pictures of docs/guide/gallery.md into docs/figures: `python docs/gallery.py`."""

import os
import re
from pathlib import Path

import matplotlib

HERE = Path(__file__).resolve().parent


def draw(folder: Path = HERE / "figures") -> None:
    """Run the programs of the page in a folder."""
    text = (HERE / "guide" / "gallery.md").read_text(encoding="utf-8")
    matplotlib.use("agg")
    os.chdir(folder)
    names: dict[str, object] = {}
    for program in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(program, names)


if __name__ == "__main__":
    draw()
