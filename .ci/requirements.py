"""What the package needs with some of its extras, a line each: ``python .ci/requirements.py plot,mpich``."""

import sys
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
print(
    *project["dependencies"],
    *(need for extra in filter(None, sys.argv[1].split(",")) for need in extras[extra]),
    sep="\n",
)
