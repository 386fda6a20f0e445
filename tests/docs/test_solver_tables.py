"""The tables of solvers of the guide are what is measured."""

import importlib.util

import numpy as np
import pytest
from helpers import launch

pytestmark = pytest.mark.serial


@pytest.fixture
def module():
    spec = importlib.util.spec_from_file_location(
        "solver_tables", launch.ROOT / "docs" / "solver_tables.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_of_the_tables_are_what_is_measured(module, monkeypatch):
    """Those of every third solver; test_docs.py compares the names of all."""
    some = dict(list(module.CATALOGUE.items())[::3])
    page = module.PAGE.read_text(encoding="utf-8").splitlines()
    monkeypatch.setattr(module, "CATALOGUE", some)
    rows = [row for table in module.tables().values() for row in table.splitlines()]
    assert len(rows) == len(some) + 4
    stale = [row for row in rows if row not in page]
    assert not stale, (
        "docs/guide/choosing.md is stale, renew it by python docs/solver_tables.py; it lacks\n"
        + "\n".join(stale[:5])
    )


@pytest.mark.slow
def test_the_tables_of_solvers_are_those_of_the_catalogue(module):
    page = module.PAGE.read_text(encoding="utf-8")
    now = module.written(page, module.tables())
    stale = [
        f"- {old}\n+ {new}" for old, new in zip(page.splitlines(), now.splitlines()) if old != new
    ]
    assert page == now, (
        "docs/guide/choosing.md is stale, renew it by python docs/solver_tables.py:\n"
        + "\n".join(stale[:5])
    )


def test_rows_of_the_table_of_faults(module):
    page = module.PAGE.read_text(encoding="utf-8")
    with np.errstate(all="ignore"):
        for name in ("extra", "gradient_tracking", "wang_elia"):
            assert module.fault_row(name, module.made(module.CATALOGUE[name])) in page
