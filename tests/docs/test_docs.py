"""What the documents show is true: doctests, the programs and commands of README and docs, their tables and links."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers import launch, pages

import mpidec
from mpidec import registry as catalogue

pytestmark = pytest.mark.serial

ROOT = launch.ROOT
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = pages.written()
PAGES = [ROOT / "README.md", ROOT / "data" / "README.md", ROOT / "jobscripts" / "README.md", *DOCS]
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(mpidec.__path__, "mpidec.")
    if not module.name.endswith("__main__")
)
SHOWING = [
    name
    for name in ["mpidec", *MODULES]
    for stem in [Path(mpidec.__path__[0], *name.split(".")[1:])]
    for path in [stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")]
    if path.exists() and ">>>" in path.read_text(encoding="utf-8")  # not compiled
]
QUICK = {"docs/guide/windows.md"}
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", SHOWING)
def test_doctests(name):
    if name.startswith(("mpidec.bluefog", "mpidec.nn", "mpidec.optim", "mpidec.problems.neural")):
        pytest.importorskip("torch")
    if name.startswith("mpidec.integrations"):
        pytest.importorskip(name, exc_type=ImportError)
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert not failed, f"{failed} examples of {name} failed"


# ---------------------------------------------------------------------------------------------------------------------
# The blocks of a page: it runs from top to bottom, as a reader would


class Block(NamedTuple):
    """Fenced block of a page."""

    language: str
    text: str
    line: int
    output: bool  # a text below commands, in the same section: what they print


def blocks(page: Path) -> Iterator[Block]:
    text, end, before = page.read_text(encoding="utf-8"), 0, ""
    for match in FENCE.finditer(text):
        language = match["language"]
        follows = before == "sh" and not re.search("^#", text[end : match.start()], re.MULTILINE)
        line = text.count("\n", 0, match.start()) + 1
        yield Block(language, textwrap.dedent(match["text"]), line, language == "text" and follows)
        end, before = match.end(), language


class Reader:
    """Reader of a page who types all that it shows into one folder.

    A block that begins with the comment ``# name.py`` (or ``.toml``, ``.csv``) is saved under this name.  Other Python blocks run
    one after the other, as one program, and the commands of ``sh`` blocks by bash; a text below these is their output, in which
    times are not compared.  Blocks of other languages (``console``: for a cluster, or slow) are only read.
    """

    def __init__(self, page: Path, folder: Path):
        self.page, self.folder, self.namespace, self.printed = (
            page,
            folder,
            {"__name__": "__page__"},
            "",
        )
        (folder / "bin").mkdir()
        script(folder / "bin" / "mpidec", f'exec "{sys.executable}" -m mpidec "$@"')
        script(folder / "bin" / "python", f'exec "{sys.executable}" "$@"')
        self.env = launch.environment()
        self.env["PATH"] = f"{folder / 'bin'}{os.pathsep}{self.env['PATH']}"
        self.env["PYTHONPATH"] = str(ROOT)  # without tests/, whose folders have names of packages
        for name in ("data", "jobscripts", "docs", "tests", "tutorials"):
            (folder / name).symlink_to(ROOT / name)

    def read(self) -> None:
        for block in blocks(self.page):
            saved = re.match(r"# ([\w-]+\.(?:py|toml|csv))\n", block.text)
            if saved:
                (self.folder / saved[1]).write_text(block.text)
            elif block.language == "python":
                exec(
                    compile("\n" * block.line + block.text, str(self.page), "exec"), self.namespace
                )
            elif block.language == "sh":
                self.command(block)
            elif block.output:
                told = f"{self.page.name}, line {block.line}: printed\n{self.printed}\nexpected\n{block.text}"
                assert doctest.OutputChecker().check_output(
                    timeless(block.text), timeless(self.printed), FLAGS
                ), told

    def command(self, block: Block) -> None:
        process = launch.start(
            ["bash", "-euo", "pipefail", "-c", block.text],
            env=self.env,
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        done = launch.finish(process, 250)
        told = f"{self.page.name}, line {block.line}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, told
        self.printed = done.stdout


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def timeless(text: str) -> str:
    """Return a text without what differs between two runs (times, rules whose length depends on them) or versions (the search)."""
    text = re.sub(
        r"[\d.e+-]+ (?=s\b|ms\b|us\b|steps/s)|(?<=expected in )\d+|(?<=search: )\d+", "", text
    )
    return re.sub(r"-{9,}", "---", text)


def shown(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def pages_to_run() -> list:
    """Return the pages with something to run, but for protocol.md, which test_protocol.py runs on several ranks, too."""
    found = [
        page
        for page in PAGES
        if {block.language for block in blocks(page)} & {"sh", "python"}
        and page.name != "protocol.md"
    ]
    return [
        pytest.param(page, id=shown(page), marks=[pytest.mark.slow] * (shown(page) not in QUICK))
        for page in found
    ]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_blocks_are_of_known_languages(page):
    """A block of another one would neither run nor be marked as text."""
    found = {
        language.strip()
        for language in re.findall(
            r"^ *```([^\n`{]+)$", page.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    assert found <= {"sh", "console", "python", "toml", "text"}, f"{shown(page)}: {sorted(found)}"


@pytest.mark.launch
@pytest.mark.timeout(600)  # a page may have many commands
@pytest.mark.parametrize("page", pages_to_run())
def test_what_a_page_shows_runs(page, tmp_path, monkeypatch):
    for module in (
        "matplotlib",
        "sklearn",
        *["torch"] * (page.name in ("training.md", "cluster.md", "process_groups.md")),
        *["lightning", "transformers", "accelerate"] * (page.name == "trainers.md"),
    ):  # README installs the first two
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    Reader(page, tmp_path).read()


def programs() -> list:
    """Return the programs of README; that with PyTorch, which takes seconds to import on each rank, is slow."""
    return [
        pytest.param(
            block.text,
            id=block.text.splitlines()[0].lstrip("# "),
            marks=[pytest.mark.slow] * ("import torch" in block.text),
        )
        for block in blocks(ROOT / "README.md")
        if block.language == "python"
    ]


@pytest.mark.launch
@pytest.mark.parametrize("program", programs())
def test_programs_of_readme_run_on_one_and_two_ranks(program, tmp_path):
    """Rank 0 prints the same on both, except for what differs between numbers of workers."""
    if "import torch" in program:
        pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(program)
    one, two = (launch.mpirun(n, [str(tmp_path / "program.py")]).stdout for n in (1, 2))
    if "net.rank == 0" in program:
        assert one == two and one.count("\n") == 1
    else:
        assert [one.count("rank"), two.count("rank")] == [1, 2]


# ---------------------------------------------------------------------------------------------------------------------
# Tables and links


def tables(page: str, heading: str) -> set[str]:
    """Return the names in the first column of the tables under `heading`."""
    section = (
        (ROOT / "docs" / "guide" / page)
        .read_text(encoding="utf-8")
        .split(f"\n{heading}\n")[1]
        .split("\n## ")[0]
    )
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)", row.split("|")[1])}


@pytest.mark.parametrize(
    "heading, page, known",
    [
        ("## Solvers", "choosing.md", lambda: catalogue.SOLVERS),
        ("## Graphs", "choosing.md", lambda: catalogue.TOPOLOGIES),
        ("### Codecs", "mixing.md", lambda: catalogue.CODECS),
        ("## What there is", "data.md", lambda: {**catalogue.PROBLEMS, **catalogue.DATA_SETS}),
        (
            "## Algorithms",
            "training.md",
            lambda: (
                pytest.importorskip("torch") and importlib.import_module("mpidec.optim").names()
            ),
        ),
    ],
)
def test_tables_name_what_there_is(heading, page, known):
    """All of it, and nothing else."""
    named = tables(page, heading)
    assert named == set(known()), f"{page}, {heading}: {sorted(named ^ set(known()))}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page as GitHub makes them from its headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_links_lead_somewhere(page):
    for path, anchor in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{shown(page)} links to {path}, which is not there"
        if anchor:
            front = target == ROOT / "README.md" and page in DOCS
            assert not front, (
                f"{shown(page)} links to README.md#{anchor}: the site has another front page"
            )
            assert anchor in anchors(target), (
                f"{shown(page)} links to {path}#{anchor}, expected one of {sorted(anchors(target))}"
            )


def test_every_page_of_the_guide_is_in_readme():
    for page in (ROOT / "docs" / "guide").glob("*.md"):
        if "{include}" not in page.read_text():
            assert f"(docs/guide/{page.name})" in README, f"README does not link to {page.name}"


def test_the_gallery_shows_what_it_draws():
    page = (ROOT / "docs" / "guide" / "gallery.md").read_text()
    for name in re.findall(r'savefig\("(\S+)"', page):
        assert (ROOT / "docs" / "figures" / name).exists() and page.count(f"figures/{name})") == 2


def test_figures_are_small():
    for figure in (ROOT / "docs" / "figures").glob("*.png"):
        assert figure.stat().st_size < 80_000, f"{figure.name} has {figure.stat().st_size} bytes"


def test_version_is_one():
    assert f"## [{mpidec.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {mpidec.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_makefile_targets_of_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"README names make {target}"


def test_launch_helper_leaves_nothing_behind(tmp_path):
    """A launch that exceeds its time is ended, with all of its processes, also those that do not want to."""
    code = (
        f"import signal, time\nfrom mpi4py import MPI\nmark = '{tmp_path.name}'\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\nwhile True: time.sleep(1)"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        launch.mpirun(3, ["-c", code], timeout=3)
    commands = lambda: [text_of(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
    left = lambda: [command for command in commands() if tmp_path.name in command]
    assert launch.until(lambda: not left(), 10), f"processes go on: {left()}"


def text_of(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # gone meanwhile
        return ""
