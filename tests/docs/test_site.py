"""The site is built without warnings, says what is public, and fits the window of a desktop and of a phone."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from helpers import launch, pages, widths

import mpidec
from mpidec.solvers import CATALOGUE

pytestmark = pytest.mark.serial

NEEDED = ("sphinx", "myst_parser", "furo", "sphinx_copybutton", "sphinx-mathjax-offline")
MODULES = """
    comm.mixing plot problems record reproduce solvers sweep testing theory topology
""".split()
INDENT = ("  ", "     ")  # of a class or a function, of a method, in the reference
COLUMNS = 100  # of code, in the text column of a desktop


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built."""
    for module in NEEDED:
        pytest.importorskip(module)
    folder = tmp_path_factory.mktemp("site")
    options = ["-W", "--keep-going", "-q", "-j2", "-d", folder / "doctrees"]
    done = launch.mpirun(
        0, ["-m", "sphinx", *options, "docs", folder / "html"], timeout=240, cwd=launch.ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


@pytest.fixture
def solver_pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that writes the pages of solvers."""
    monkeypatch.syspath_prepend(str(pages.DOCS))
    return importlib.import_module("solver_pages")


def test_each_page_has_a_name_of_its_own(solver_pages):
    """In the navigation, where guide, tutorials and reference stand side by side."""
    texts = [page.read_text(encoding="utf-8") for page in pages.written()]
    names = [text.partition("\n")[0].strip("# ") for text in texts]
    names += [solver_pages.title(name) for name in CATALOGUE]
    lessons = solver_pages.notebooks.SOURCE.glob("*.ipynb")
    names += [solver_pages.notebooks.title(path) for path in lessons]
    assert not (twice := [name for name, count in Counter(names).items() if count > 1]), twice


@pytest.mark.slow
def test_is_built_without_warnings_and_needs_no_network(site):
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert all(flag in commands for flag in ("--step-size", "--vary")), (
        "the commands lack what --help prints"
    )
    lesson = (site / "tutorials" / "08_diffusion_lms.html").read_text()
    assert all(
        part in lesson for part in ("<summary>Solution", "_images/08_", "dB, theory", "tex-svg")
    )
    assert not re.search(r'<(?:script[^>]* src|link[^>]* href)="https?:', lesson), "needs a network"


@pytest.mark.slow
def test_the_reference_has_all_public_names(site):
    texts = (page.read_text(encoding="utf-8") for page in (site / "reference").rglob("*.html"))
    reference = "\n".join(texts)
    pytorch = ("optim", "nn") if importlib.util.find_spec("torch") else ()
    for name in (*MODULES, *pytorch):
        module = importlib.import_module(f"mpidec.{name}")
        missing = [key for key in public(module) if f'id="mpidec.{name}.{key}"' not in reference]
        assert not missing, f"docs/reference lacks {missing} of mpidec.{name}"


def public(module: ModuleType) -> dict[str, object]:
    """Return the public names of a module that it does not have from elsewhere."""
    things = {key: getattr(module, key) for key in getattr(module, "__all__", dir(module))}
    return {
        key: thing
        for key, thing in things.items()
        if getattr(thing, "__module__", "").startswith("mpidec.") and not key.startswith("_")
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_page_is_wider_than_the_window(site):
    """On a desktop, code, equations and tables need no scroll bars of their own, either."""
    chromium = widths.browser()
    if chromium is None:
        pytest.skip(f"no Chromium on PATH: looked for {', '.join(widths.NAMES)}")
    found = list(widths.measured(site, chromium, patience=launch.patient(60)))
    seen = {(page.page, page.width) for page in found}
    assert seen >= {("/reference/solvers.html", width) for width in widths.WIDTHS}
    said = [fault for page in found for fault in page.faults()]
    said += [
        box
        for page in found
        if page.width == widths.WIDTHS[0]
        for box in page.boxes("pre", "div.math", "div.table")
    ]
    assert not said, "\n".join(said)


def listings() -> Iterator[tuple[str, str]]:
    """Yield where the site shows code, and a line of it; printed texts wrap."""
    for page in pages.written():
        blocks = re.findall(
            r"^ *```(?:sh|python|toml)\n(.*?)^ *```$", page.read_text(), re.M | re.S
        )
        yield from ((page.name, line) for block in blocks for line in block.splitlines())
    for notebook in (launch.ROOT / "tutorials").glob("*.ipynb"):
        for cell in json.loads(notebook.read_text())["cells"]:
            if cell["cell_type"] == "code":
                yield from ((notebook.name, line.rstrip("\n")) for line in cell["source"])
    for name, text in docstrings():
        lines = (line for line in text.splitlines() if line.startswith((">>>", "...")))
        yield from ((name, f"{INDENT[name.count('.')]}{line}") for line in lines)


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the names and docstrings of what the reference shows: `name` and `name.method`."""
    for module in (mpidec, *(importlib.import_module(f"mpidec.{name}") for name in MODULES)):
        for name, thing in public(module).items():
            yield name, inspect.getdoc(thing) or ""
            methods = vars(thing) if inspect.isclass(thing) else {}
            for method in (key for key in methods if not key.startswith("_")):
                yield f"{name}.{method}", inspect.getdoc(getattr(thing, method)) or ""


def test_code_fits_the_text_column():
    long = [f"{where}: {line}" for where, line in listings() if len(line) > COLUMNS]
    assert not long, "\n".join(long)


def test_pages_of_solvers_link_to_what_uses_them(solver_pages):
    """Experiments through tables and functions of their modules, not through the programs that they share."""
    users, text = solver_pages.users(), solver_pages.CHOOSING.read_text(encoding="utf-8")
    for name, solver, other in (("extra-exact", "EXTRA", "LEAD"), ("lead-bits", "LEAD", "EXTRA")):
        found = "\n".join(users[solver]["Published experiments"])
        assert f"#{name})" in found
        assert f"#{name})" not in "\n".join(users[other].get("Published experiments", ()))
    assert any("08_diffusion_lms" in line for line in users["DGD"]["Tutorials"])
    page = solver_pages.page("frost", text, users["FROST"])
    assert "and weights that only the receiver knows; graph: your digraph" in page
    assert "| limit | minimizer |" in page and "| channel noise | grows |" in page
    assert ".. autoclass:: FROST\n" in page and "[Push-Pull]" not in page


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize("name", CATALOGUE)
def test_the_command_of_a_solver_runs(name, solver_pages, tmp_path):
    pytest.importorskip("sklearn")
    words = shlex.split(solver_pages.command(name))
    program = words[words.index("mpidec") + 1 :]
    done = launch.mpirun(0, ["-m", "mpidec", *program, "--steps", "20"], timeout=60, cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "run.h5").exists(), done.stderr
