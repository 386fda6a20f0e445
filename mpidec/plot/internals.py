"""What the rest of the package uses of mpidec.plot beside its public names."""

from .drawing import View as View, check_name as check_name
from .labels import (
    CHOSEN as CHOSEN,
    MISSING as MISSING,
    check_names as check_names,
    displayed as displayed,
    flat as flat,
    split as split,
    together as together,
    worded as worded,
)
from .options import FLAGS as FLAGS, look as look, own_names as own_names
from .quantities import X as X
from .runs import RunLine as RunLine, arrange as arrange, drawn as drawn, find as find
