"""One module has all exceptions of the package."""

import ast
import inspect
import pickle

import pytest
from helpers import launch

import mpidec
from mpidec import exceptions

CONTROL_FLOW = {"_Enough", "Retry", "RowsLeft"}  # caught in the room that raises them


def classes():
    return {
        name: thing
        for name, thing in vars(exceptions).items()
        if inspect.isclass(thing) and issubclass(thing, BaseException)
    }


def test_the_tree_in_the_docstring_is_that_of_the_classes():
    parents, found = [], {}
    for line in exceptions.__doc__.partition("::\n")[2].splitlines():
        if line.startswith("    ") and (words := line.split("─ ")[-1].split()):
            depth = len(line) - len(line.lstrip(" │├└─"))
            parents = [parent for parent in parents if parent[0] < depth]
            found[words[0]] = parents[-1][1] if parents else None
            parents.append((depth, words[0]))
    assert {name: found[name] for name in classes()} == {
        name: thing.__base__.__name__ for name, thing in classes().items()
    }


@pytest.mark.serial
def test_no_other_module_has_exceptions():
    suffixes = ("Error", "Exception", "Interrupt")
    found = {
        node.name
        for path in (launch.ROOT / "mpidec").rglob("*.py")
        if path.name != "exceptions.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).endswith(suffixes) for base in node.bases)
    }
    assert found == CONTROL_FLOW


def test_exceptions_and_their_marks_travel_between_ranks():
    for name, thing in classes().items():
        if issubclass(thing, Exception):
            error = pickle.loads(pickle.dumps(thing("text")))
            assert type(error) is thing and str(error) == "text"
            assert not exceptions.on_all_ranks(error) and not exceptions.from_another_rank(error)
            exceptions.mark(error, from_another_rank=True)
            exceptions.mark(error, on_all_ranks=True)
            assert exceptions.on_all_ranks(error) and exceptions.from_another_rank(error)
            if name not in ("WrongResult", "ContractError"):  # of rooms of their own
                assert getattr(mpidec, name) is thing and name in dir(mpidec)
    assert exceptions.InputError("text", 3).status == 3
