"""Draw the pictures of docs/guide/gallery.md into docs/figures: `python docs/gallery.py`."""

import os
import re
import shutil
import tempfile
from pathlib import Path

import matplotlib

HERE = Path(__file__).resolve().parent


def draw(folder: Path = HERE / "figures") -> None:
    """Run the programs of the page, as in a checkout, and take their pictures."""
    text = (HERE / "guide" / "gallery.md").read_text(encoding="utf-8")
    matplotlib.use("agg")
    names: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as place:
        os.symlink(HERE.parent / "tutorials", Path(place, "tutorials"))
        os.chdir(place)
        for program in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            exec(program, names)
        for picture in Path(place).glob("*.png"):
            shutil.copy(picture, folder)
        os.chdir(HERE)


if __name__ == "__main__":
    draw()
