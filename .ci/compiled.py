"""Compiled modules of this checkout that are missing or older than their sources.

.venv/bin/python .ci/compiled.py                remove old ones, and warn of all; for .ci/venv, after the installation
.venv/bin/python .ci/compiled.py --buildable    print the names of those that the C compiler accepts; for the Makefile
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]

REMEDY = (
    "install a C compiler and the headers of Python (Debian, Ubuntu: apt install gcc python3-dev; conda: conda install "
    "c-compiler), then run make again"
)


def files(extension: dict) -> list[Path]:
    """Return the compiled files of an extension for this Python: none, one, or one with a less specific suffix, too."""
    stem = extension["name"].replace(".", "/")
    return [path for suffix in EXTENSION_SUFFIXES if (path := Path(stem + suffix)).exists()]


def up_to_date(extension: dict) -> bool:
    sources = [*extension["sources"], *extension.get("depends", [])]
    newest = max(Path(source).stat().st_mtime for source in sources)
    return bool(files(extension)) and all(
        path.stat().st_mtime >= newest for path in files(extension)
    )


def obstacle(extension: dict) -> str:
    """Return why the C compiler cannot build an extension; empty if it can."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(command[0]) is None:
        return f"no C compiler: {command[0]} was not found"
    includes = [f"-I{sysconfig.get_path(name)}" for name in ("include", "platinclude")]
    tried = subprocess.run(
        [*command, "-fsyntax-only", "-w", *includes, *extension["sources"]],
        capture_output=True,
        text=True,
    )
    errors = [line for line in tried.stderr.splitlines() if "error" in line] or [
        f"{command[0]} failed"
    ]
    return errors[0] if tried.returncode else ""


def main() -> int:
    os.chdir(Path(__file__).resolve().parent.parent)
    extensions = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]["ext-modules"]
    missing = [extension for extension in extensions if not up_to_date(extension)]
    if "--buildable" in sys.argv:
        print(*(extension["name"] for extension in missing if not obstacle(extension)))
        return 0
    for path in (path for extension in missing for path in files(extension)):
        path.unlink()  # compiled from other sources than those here
    if missing:
        names = " and ".join(extension["name"] for extension in missing)
        why = next(
            filter(None, map(obstacle, missing)),
            "the build failed: pip install -v -e . shows its messages",
        )
        print(
            f"mpidec set-up: warning: {names} could not be compiled ({why}): the results are the same, but mixing is "
            f"10 to 100 times slower; {REMEDY}",
            file=sys.stderr,
        )
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
