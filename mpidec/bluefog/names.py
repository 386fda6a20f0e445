"""Where `import bluefog` finds the modules of this package."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from .older import restore
from .variables import make_importable

PACKAGE = __package__
NAME = "bluefog"


class Alias(MetaPathFinder, Loader):
    """Finds `bluefog.x` as the module `mpidec.bluefog.x`: one module under two names."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.split(".")[0] != NAME or importlib.util.find_spec(self._own(name)) is None:
            return None
        return ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._own(spec.name))
        # The import system sets that of the other name.
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec

    @staticmethod
    def _own(name: str) -> str:
        return PACKAGE + name[len(NAME) :]


def install() -> None:
    """Make `import bluefog` mean this package, in this process and in those that it starts."""
    if not any(isinstance(finder, Alias) for finder in sys.meta_path):
        sys.meta_path.insert(0, Alias())
        restore()
    make_importable(os.environ)
