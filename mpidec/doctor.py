"""``python -m mpidec.doctor``."""

from .diagnostics import main as main

if __name__ == "__main__":
    raise SystemExit(main())
