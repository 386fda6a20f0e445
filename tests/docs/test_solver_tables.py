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


def stale(page, now):
    lines = [
        f"- {old}\n+ {new}" for old, new in zip(page.splitlines(), now.splitlines()) if old != new
    ]
    return (
        "docs/guide/choosing.md is stale, renew it by python docs/solver_tables.py:\n"
        + "\n".join(lines[:5])
    )


def test_rows_of_the_tables_are_what_is_measured(module, monkeypatch):
    """All cells but two: which graphs a solver bears, which takes long, is measured of every third one."""
    page = module.PAGE.read_text(encoding="utf-8")
    table = page.split(module.BEGIN.format("solvers"))[1].split(module.END.format("solvers"))[0]
    rows = [row.split(" | ") for row in table.splitlines() if row.startswith("| `")]
    graphs = {row[0][3:-1]: row[3:5] for row in rows}
    measured, operators, row = list(module.CATALOGUE)[::3], module.operators, module.row

    def quick(name, solver):
        own = operators if name in measured else lambda _: graphs.get(name, ("?", "?"))
        monkeypatch.setattr(module, "operators", own)
        return row(name, solver)

    monkeypatch.setattr(module, "row", quick)
    now = module.written(page, module.tables())
    assert page == now, stale(page, now)


@pytest.mark.slow
def test_the_tables_of_solvers_are_those_of_the_catalogue(module):
    page = module.PAGE.read_text(encoding="utf-8")
    now = module.written(page, module.tables())
    assert page == now, stale(page, now)


def test_rows_of_the_table_of_faults(module):
    page = module.PAGE.read_text(encoding="utf-8")
    with np.errstate(all="ignore"):
        for name in ("extra", "gradient_tracking", "wang_elia"):
            assert module.fault_row(name, module.made(module.CATALOGUE[name])) in page
