"""The pages of the documents, without those that a build of the site writes (docs/ in .gitignore)."""

from pathlib import Path

from . import launch

DOCS = launch.ROOT / "docs"
BUILT = tuple(
    line
    for line in (launch.ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    if line.startswith("docs/")
)


def written() -> list[Path]:
    """Return the pages in docs/ that are written by hand."""
    return sorted(
        page
        for page in DOCS.rglob("*.md")
        if not page.relative_to(launch.ROOT).as_posix().startswith(BUILT)
    )
