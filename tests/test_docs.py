"""What the documents show is true: doctests, the programs of README and docs, its tables, its commands."""
from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import subprocess
import time
from pathlib import Path

import pytest

import launch
import mpidec

pytestmark = pytest.mark.serial

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = sorted(module.name for module in pkgutil.walk_packages(mpidec.__path__, "mpidec."))


@pytest.mark.parametrize("name", ["mpidec", *MODULES])
def test_doctests(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name.startswith("mpidec.optim"):
        pytest.importorskip("torch")
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert not failed, f"{failed} examples of {name} failed"


def blocks(text: str, language: str) -> list[tuple[int, str]]:
    """Return the fenced blocks of one language, each with the line it starts on."""
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start()) + 1, match.group(1)) for match in found]


def test_python_blocks_of_readme_run(tmp_path, monkeypatch):
    """They run one after the other, as one program."""
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for line, code in blocks(README, "python"):
        exec(compile("\n" * line + code, "README.md", "exec"), namespace)


@pytest.mark.launch
def test_readme_program_prints_what_readme_says(tmp_path, mpirun):
    _, program = blocks(README, "python")[0]
    said = re.search(r"^\$ mpirun -n 4 python (\S+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (tmp_path / said.group(1)).write_text(program)
    for ranks in (4, 0):
        done = mpirun(ranks, [said.group(1)], cwd=tmp_path, check=True)
        assert done.stdout.splitlines() == said.group(2).splitlines()


def table(heading: str) -> set[str]:
    """Return the names in the first column of the table under `heading`, those of a row separated by spaces."""
    section = README.split(heading)[1].split("\n#")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)", row.split("|")[1])}


@pytest.mark.launch
def test_tables_name_what_there_is(mpirun):
    """The tables of README and ``--list`` name the same problems, data sets, solvers, topologies and codecs."""
    listed = mpirun(0, ["-m", "mpidec.run", "--list"], check=True).stdout
    names = set(re.findall(r"^ +([a-z]\w*)", listed, re.MULTILINE))
    headings = ("### Topologies", "### Solvers", "### Codecs", "### Problems and data")
    for heading in headings:
        assert table(heading) <= names, f"{heading}: {table(heading) - names} not in --list"
    named = set().union(*map(table, headings))
    assert names <= named, f"README leaves out {names - named}"


def test_links_of_documents_lead_somewhere():
    for page in [*PAGES, ROOT / "jobscripts" / "README.md", ROOT / "data" / "README.md"]:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_version_is_one():
    assert f"## [{mpidec.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {mpidec.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_makefile_targets_of_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"README names make {target}"


def test_launch_helper_leaves_nothing_behind(tmp_path):
    """A launch that exceeds its time is ended, with all of its processes, also those that do not want to."""
    code = (f"import signal, time\nfrom mpi4py import MPI\nmark = '{tmp_path.name}'\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\nwhile True: time.sleep(1)")
    with pytest.raises(subprocess.TimeoutExpired):
        launch.mpirun(3, ["-c", code], timeout=3)
    deadline = time.monotonic() + 10
    while left := [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if tmp_path.name in text_of(path)]:
        assert time.monotonic() < deadline, f"processes {left} go on"
        time.sleep(0.1)


def text_of(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:                                         # gone meanwhile
        return ""
