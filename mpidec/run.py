"""``python -m mpidec.run``."""

import sys

from .experiment.command import main as main

if __name__ == "__main__":
    sys.exit(main())
