"""Every default of the public interface stands in defaults.txt: a change of one is a change of that file.

After a change on purpose: python tests/test_defaults.py
"""

from __future__ import annotations

import enum
import inspect
from pathlib import Path

import pytest

import mpidec
from mpidec import nn, optim, problems, record, solvers, theory, topology
from mpidec.comm.mixing import codecs
from mpidec.comm.mixing.mixers.operator import Operator
from mpidec.comm.mixing.network.network import Network
from mpidec.comm.rma.window import Window

pytestmark = pytest.mark.serial

TABLE = Path(__file__).with_name("defaults.txt")
ROOMS = (mpidec, topology, problems, codecs, solvers, theory, record, nn, optim)
CLASSES = (Network, Operator, Window)


def defaults(name, thing):
    """`name(parameter=default, ...)`, of the parameters that have one."""
    if isinstance(thing, enum.EnumMeta):
        return
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return
    given = [
        f"{each.name}={getattr(each.default, '__qualname__', None) or repr(each.default)}"
        for each in parameters
        if each.default is not inspect.Parameter.empty
    ]
    if given:
        yield f"{name}({', '.join(given)})"


def table():
    for room in ROOMS:
        for name in sorted(getattr(room, "__all__", vars(room))):
            thing = getattr(room, name)
            ours = getattr(thing, "__module__", "").startswith("mpidec")
            if callable(thing) and ours and not name.startswith("_"):
                yield from defaults(f"{room.__name__}.{name}", thing)
    for each in CLASSES:
        for name, thing in inspect.getmembers(each, callable):
            if not name.startswith("_"):
                yield from defaults(f"{each.__name__}.{name}", thing)


def test_defaults_are_those_of_the_table():
    assert list(table()) == TABLE.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    TABLE.write_text("".join(f"{line}\n" for line in table()), encoding="utf-8")
