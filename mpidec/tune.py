"""``python -m mpidec.tune``: the step size of an experiment, found without running it."""

import sys

from .experiment.command import main

if __name__ == "__main__":
    sys.exit(main(["--tune", *sys.argv[1:]], program="mpidec.tune"))
