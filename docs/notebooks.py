"""Write the tutorials as pages of the site, with their outputs as stored: docs/tutorials/."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE, PAGES = HERE.parent / "tutorials", HERE / "tutorials"


def content(notebook: Path) -> dict:
    """Return a notebook as stored."""
    return json.loads(notebook.read_text(encoding="utf-8"))


def title(notebook: Path) -> str:
    """Return the number and the heading of a notebook, which is its name in the navigation."""
    heading = content(notebook)["cells"][0]["source"][0]
    return f"{int(notebook.stem[:2])}. {heading.strip('# ').strip()}"


def page(notebook: Path, folder: Path) -> str:
    """Return the Markdown text of a notebook; its pictures are written into the folder."""
    text = "\n\n".join(parts(content(notebook), notebook, folder))
    return re.sub("^# .*$", f"# {title(notebook)}", text, count=1, flags=re.MULTILINE)


def parts(stored: dict, notebook: Path, folder: Path) -> Iterator[str]:
    """Yield the texts of the cells and of their outputs; those of solutions are folded."""
    for number, cell in enumerate(stored["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text = text.replace("](../docs/", "](../")
            text = re.sub(r"^(\$\$.*?\$\$)$", r"\n\1\n", text, flags=re.MULTILINE | re.DOTALL)
            yield re.sub(r"\]\((\d\d_\w+)\.ipynb", r"](\1.md", text)
            continue
        hidden = "hide-input" in cell["metadata"].get("tags", ())
        if hidden:
            yield "<details><summary>Solution</summary>"
        language = "console" if re.search("^[!%]", text, re.MULTILINE) else "python"
        yield f"```{language}\n{text}\n```"
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                yield f"```text\n{''.join(output['text'])}```"
            elif "image/png" in output.get("data", {}):
                picture = folder / f"{notebook.stem}_{number}.png"
                picture.write_bytes(base64.b64decode(output["data"]["image/png"]))
                yield f"![Picture drawn by the cell above]({picture.name})"
        if hidden:
            yield "</details>"


def write(folder: Path = PAGES) -> None:
    """Write the pages of all notebooks into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for notebook in sorted(SOURCE.glob("*.ipynb")):
        text = page(notebook, folder)
        (folder / f"{notebook.stem}.md").write_text(text, encoding="utf-8")
