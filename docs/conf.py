"""Configuration of the documentation: `make docs`."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import notebooks  # noqa: E402
import pictures  # noqa: E402
import rooms  # noqa: E402
import solver_pages  # noqa: E402

import mpidec  # noqa: E402

project, author = "mpidec", "The mpidec developers"
version = release = mpidec.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
suppress_warnings = ["ref.python"]  # names such as `n` that several classes have
IMPORTED = {  # by pages of the reference
    "optim": ("torch",),
    "nn": ("torch",),
    "integrations": ("lightning", "transformers", "accelerate"),
}
for page, needed in IMPORTED.items():
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        print(f"mpidec docs: without {', '.join(missing)} the page reference/{page} is left out")
        exclude_patterns.append(f"reference/{page}.md")
        suppress_warnings += ["toc.excluded", "toc.not_readable"]
# MathJax from a package instead of a content network, in its form of a single file: the site needs no network.
mathjax = importlib.util.find_spec("sphinx-mathjax-offline").submodule_search_locations[0]
html_static_path = ["_static", f"{mathjax}/static/mathjax/tex-svg.js"]
mathjax_path, html_css_files = "tex-svg.js", ["site.css"]
# Sphinx writes equations of several lines as `split`, which leaves no space between two columns of equations.
mathjax3_config = {
    "tex": {"environments": {"split": [r"\begin{aligned}", r"\end{aligned}"]}},
}
html_theme, html_title = "furo", f"mpidec {version}"
html_show_copyright = False

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp, .go"

add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the parameters are described in the docstrings
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
default_role = "code"


class CommandHelp(SphinxDirective):
    """What a command prints with ``--help``: `{command-help} run`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "COLUMNS": "100",
            "NO_COLOR": "1",
        }
        done = subprocess.run(
            [sys.executable, "-m", f"mpidec.{self.arguments[0]}", "--help"],
            env=env,
            text=True,
            check=True,
            stdout=subprocess.PIPE,
            timeout=60,
        )
        return [nodes.literal_block(done.stdout, done.stdout, language="text")]


class SolverList(SphinxDirective):
    """Links to the pages of solvers: `{solvers}` with their names."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(solver_pages.listing(" ".join(self.content).split()))


OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "data/README.md": "guide/data_sets.md",
    "jobscripts/README.md": "guide/jobscripts.md",
}


def pages_of_files(app, page: str, source: list[str]) -> None:
    """Let links to files outside of this folder lead to the pages that have their contents."""
    for file, target in OUTSIDE.items():
        up = "../" * page.count("/")
        source[0] = source[0].replace(f"]({up}../{file}", f"]({up}{target}")
    source[0] = re.sub(r"\]\((?:\.\./)+(tutorials/\w+)\.ipynb", r"](/\1.md", source[0])
    if page == "guide/gallery":
        source[0] = pictures.gallery(source[0])
    if page == "reproduced/index":  # rows of many numbers may break between any two of them
        source[0] = re.sub(r"(?<=\d)/(?=\d)", "/\u200b", source[0])
    if page == "guide/choosing":
        source[0] = re.sub(r"^\| `(\w+)` \|", named_solver, source[0], flags=re.MULTILINE)


def named_solver(found: re.Match[str]) -> str:
    """Return the first cell of a table with a link to the page of the solver that it names."""
    name = found[1]
    known = name in solver_pages.CATALOGUE
    return f"| [`{name}`](../reference/solvers/{name}.md) |" if known else found[0]


def not_shown(app, what: str, name: str, thing, skip: bool, options) -> bool | None:
    """Leave out what a module has imported from other packages and from private modules, and the states of solvers, whose
    fields are in the equations.
    """
    module = str(getattr(thing, "__module__", "mpidec"))
    foreign = not module.startswith("mpidec") or module.startswith("mpidec._")
    return True if foreign or name in ("State", "MixedState") else None


def without_summary(app, what: str, name: str, thing, options, lines: list[str]) -> None:
    """Leave out the first paragraph of the docstring of a solver, with which its page begins."""
    if thing in solver_pages.CATALOGUE.values():
        del lines[: lines.index("") + 1]


def setup(app) -> None:
    rooms.draw()  # for architecture.md
    notebooks.write()
    solver_pages.write()
    app.add_directive("command-help", CommandHelp)
    app.add_directive("solvers", SolverList)
    app.connect("autodoc-skip-member", not_shown)
    app.connect("autodoc-process-docstring", without_summary)
    app.connect("source-read", pages_of_files)
