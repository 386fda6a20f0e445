"""Where the compiled modules of this package could come from: the remedy where they are missing."""

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

MODULES = (
    "mpidec.comm.kernels._kernel",
    "mpidec.comm.runtime._shared",
    "mpidec.comm.rma._records",
    "mpidec.comm.timeline._events",
)


def compiled_copy() -> Path | None:
    """Another copy of this package on Python's path whose modules are compiled; None if there is
    none.
    """
    here = Path(__file__).resolve().parents[2]
    paths = [name.replace(".", "/") for name in MODULES]
    for entry in dict.fromkeys(Path(entry or ".").resolve() for entry in sys.path):
        if entry / "mpidec" != here and all(
            any((entry / f"{path}{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
            for path in paths
        ):
            return entry / "mpidec"
    return None


def remedy() -> str:
    """Return what to do where compiled modules are missing."""
    copy, here = compiled_copy(), Path(__file__).resolve().parents[2]
    if copy is None:
        return "install a C compiler and the headers of Python, then reinstall mpidec"
    return (
        f"this is the source folder {here}, and the copy that is installed in {copy.parent} is "
        "compiled: run it from another "
        "folder or by the command mpidec (mpidec run ...), or compile this one, too: pip install "
        "-e ."
    )
