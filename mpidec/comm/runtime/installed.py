"""Where the compiled modules of this package could come from: the remedy where they are missing."""

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

MODULES = ("comm/kernels/_kernel", "comm/runtime/_shared", "comm/rma/_records")


def compiled_copy() -> Path | None:
    """Another copy of this package on Python's path whose modules are compiled; None if there is none."""
    here = Path(__file__).resolve().parents[2]
    for folder in dict.fromkeys(Path(entry or ".").resolve() / "mpidec" for entry in sys.path):
        if folder != here and all(
            any((folder / f"{name}{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
            for name in MODULES
        ):
            return folder
    return None


def remedy() -> str:
    """What to do where compiled modules are missing."""
    copy, here = compiled_copy(), Path(__file__).resolve().parents[2]
    if copy is None:
        return "install a C compiler and the headers of Python, then reinstall mpidec"
    return (
        f"this is the source folder {here}, and the copy that is installed in {copy.parent} is compiled: run it from another "
        "folder or by the command mpidec (mpidec run ...), or compile this one, too: pip install -e ."
    )
