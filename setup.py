"""The text of README for package indexes, where links relative to the repository lead nowhere; all else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]*)\)")


def description(readme: str, source: str | None) -> str:
    """Return `readme` with links below the address `source` of the repository; without an address, their text alone."""

    def absolute(link: re.Match) -> str:
        image, text, path = link.groups()
        if source is None:
            return "" if image else text
        return f"{image}[{text}]({source}/{'raw' if image else 'blob'}/HEAD/{path})"

    return LINK.sub(absolute, readme)


def address(project: str) -> str | None:
    """Return the address `Source` of pyproject.toml, if a release has filled it in."""
    found = re.search(r'^Source = "([^"]+?)/?"', project, re.MULTILINE)
    return found and found[1]


setup(
    long_description=description(
        (HERE / "README.md").read_text(encoding="utf-8"),
        address((HERE / "pyproject.toml").read_text(encoding="utf-8")),
    ),
    long_description_content_type="text/markdown",
)
