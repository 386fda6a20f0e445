"""``python -m mpidec.doctor``."""

import sys

from .diagnostics.doctor import main as main

if __name__ == "__main__":
    sys.exit(main())
