"""Configuration of the documentation: `make docs`."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mpidec

project, author = "mpidec", "The mpidec developers"
version = release = mpidec.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax",
              "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme, html_title = "furo", f"mpidec {version}"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp, .go"

add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"                              # the parameters are described in the docstrings
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
default_role = "code"
suppress_warnings = ["ref.python"]                       # names such as `n` that several classes have
