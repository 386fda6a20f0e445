"""``python -m mpidec.tune``: the step size of an experiment, found without running it."""

import sys
from types import ModuleType

from .driver.internals import tune
from .experiment import TUNE


class _Function(ModuleType):
    """The import of this module takes the place of the function `mpidec.tune`: the module is
    called like it.
    """

    __call__ = staticmethod(tune)


sys.modules[__name__].__class__ = _Function

if __name__ == "__main__":
    raise SystemExit(TUNE.main())
