"""``python -m mpidec.run``."""

from .experiment import main as main

if __name__ == "__main__":
    raise SystemExit(main())
