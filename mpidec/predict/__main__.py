"""Entry point of ``python -m mpidec.predict``."""

from .command import main

if __name__ == "__main__":
    raise SystemExit(main())
