"""``python -m mpidec.bluefog program.py [ARGUMENTS]`` runs a BlueFog program, and ``-m module``
a module, where BlueFog is this.
"""

from __future__ import annotations

import os
import runpy
import sys

from .names import install

USAGE = "usage: python -m mpidec.bluefog (PROGRAM | -m MODULE) [ARGUMENTS]"


def main(arguments: list[str]) -> int:
    """Run the program that the arguments name as ``__main__``; return the exit status."""
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        print(USAGE, file=sys.stdout if arguments[:1] != ["-m"] and arguments else sys.stderr)
        return 0 if arguments and arguments != ["-m"] else 2
    install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
