"""Find the step size of an experiment without running it: ``mpirun -n 16 python -m mpidec.tune experiment.toml -o tune.png``.

The flags are those of ``python -m mpidec.run``; ``python -m mpidec.run --tune`` is the same command.
"""
from __future__ import annotations

import sys
from importlib import import_module

if __name__ == "__main__":
    sys.exit(import_module("mpidec.run").main(["--tune", *sys.argv[1:]]))
