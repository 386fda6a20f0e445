"""Entry point of ``python -m mpidec.theory``."""

from .command import main

if __name__ == "__main__":
    raise SystemExit(main())
