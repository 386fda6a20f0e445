"""``python -m mpidec.tune``: the step size of an experiment, found without running it."""

import sys

from .experiment.command import TUNE

if __name__ == "__main__":
    sys.exit(TUNE.main())
