"""Entry point of ``python -m mpidec.sweep``."""

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
