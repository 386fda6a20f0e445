"""The architecture is a test: who may import whom, what a module may hold, what `import mpidec` costs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from helpers import launch

pytestmark = pytest.mark.serial

PACKAGE = launch.ROOT / "mpidec"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Every room, from the ground up: what it may import of the rooms above it in this table, and of others beside the standard
# library and numpy.  A room is a folder or a module of mpidec/, or a folder of mpidec/comm/.
GROUND = (
    "_complex",
    "_random",
    "_process",
    "_style",
    "_version",
    "exceptions",
    "plugins",
    "_code",
    "_words",
    "protocols",
    "_validation",
    "_sparse",
    "_predictions",
)
MATHEMATICS = (*GROUND, "topology", "nn", "datasets", "problems", "solvers")
COMM = (
    "comm.arrays",
    "comm.kernels",
    "comm.timeline",
    "comm.runtime",
    "comm.checks",
    "comm.transport",
    "comm.rma",
    "comm.mixing",
)
ROOMS = {
    **dict.fromkeys(GROUND, ((), ())),
    "_validation": (("plugins",), ()),
    "_sparse": (("_complex", "_validation"), ("scipy",)),
    "_predictions": (("_complex", "_validation", "_sparse"), ()),
    "_words": (("plugins",), ()),
    "_style": ((), ("matplotlib",)),
    "topology": (GROUND, ("scipy", "networkx", "matplotlib")),
    "nn": (GROUND, ("torch",)),
    "datasets": (GROUND, ("sklearn", "PIL")),
    "problems": ((*GROUND, "nn", "datasets"), ("scipy", "torch")),
    "comm": ((), ()),
    "comm.arrays": (GROUND, ("torch", "cupy")),
    "comm.kernels": ((*GROUND, "topology", "comm.arrays"), ("scipy",)),
    "solvers": ((*GROUND, "comm.kernels"), ()),
    "comm.timeline": (GROUND, ()),
    "comm.runtime": ((*GROUND, "topology", *COMM[:3]), ("mpi4py", "torch")),
    "comm.checks": ((*GROUND, "topology", *COMM[:4]), ()),
    "comm.transport": ((*GROUND, "topology", *COMM[:5]), ()),
    "comm.rma": ((*GROUND, "topology", *COMM[:6]), ()),
    "comm.mixing": ((*GROUND, "topology", *COMM[:7]), ("scipy", "torch")),
    "registry": ((*MATHEMATICS, "comm.mixing"), ()),
    "record": (GROUND, ("scipy", "h5py", "pandas")),
    "driver": (
        (*MATHEMATICS, *COMM, "registry", "record"),
        ("scipy", "matplotlib", "threadpoolctl"),
    ),
    "optim": ((*MATHEMATICS, *COMM, "driver"), ("scipy", "torch")),
    "bluefog": (
        (*GROUND, "topology", *COMM, "optim"),
        ("ipyparallel", "mpi4py", "networkx", "torch", "traitlets"),
    ),
    "integrations": (
        (*MATHEMATICS, *COMM, "driver", "optim"),
        ("accelerate", "torch", "transformers"),
    ),
    "cli": ((*GROUND, "comm.runtime"), ("rich",)),
    "plot": (
        (*GROUND, "topology", "registry", "record", "comm.runtime", "cli"),
        ("h5py", "matplotlib"),
    ),
    "watch": ((*GROUND, "comm.runtime", "record", "cli"), ("rich",)),
    "jobscript": (("cli",), ()),
    "restart": ((*GROUND, "comm.runtime", "record", "cli"), ()),
    "trace": ((*GROUND, "comm.runtime", "comm.timeline", "cli"), ()),
    "diagnostics": ((*GROUND, "topology", *COMM, "cli"), ("h5py", "mpi4py", "threadpoolctl")),
    "theory": ((*MATHEMATICS, *COMM, "registry", "driver", "cli"), ("scipy", "matplotlib")),
    "testing": ((*MATHEMATICS, *COMM, "driver", "theory"), ("torch",)),
    "experiment": (
        (
            *(*MATHEMATICS, *COMM, "registry", "record", "driver", "cli", "plot", "diagnostics"),
            "theory",
        ),
        (),
    ),
    "train": (
        (*MATHEMATICS, *COMM, "registry", "record", "driver", "optim", "cli", "experiment"),
        ("torch",),
    ),
    "sweep": (
        (*MATHEMATICS, *COMM, "registry", "record", "driver", "cli", "plot", "experiment"),
        ("matplotlib", "threadpoolctl"),
    ),
    "bench": (
        (*MATHEMATICS, *COMM, "registry", "driver", "optim", "cli", "diagnostics"),
        ("decent_dp", "loguru", "matplotlib", "mpi4py", "torch"),
    ),
    "predict": (
        (
            *(*MATHEMATICS, *COMM, "registry", "driver", "theory", "optim", "cli", "experiment"),
            *("train", "bench"),
        ),
        (),
    ),
    "reproduce": (
        (
            *(*MATHEMATICS, *COMM, "registry", "record", "driver", "theory", "optim", "cli"),
            *("experiment", "train", "sweep", "predict"),
        ),
        ("PIL", "h5py", "matplotlib", "networkx", "scipy", "threadpoolctl", "torch"),
    ),
    "run": (("experiment",), ()),
    "tune": (("driver", "experiment"), ()),
    "doctor": (("diagnostics",), ()),
}
ROOMS["__main__"] = (tuple(ROOMS), ())
ROOMS["__init__"] = (tuple(ROOMS), ())
LAZY = {"networkx", "sklearn", "matplotlib", "torch", "cupy", "rich", "pandas"}
TORCH = {
    "bluefog",
    "integrations",
    "nn",
    "optim",
    "train",
}  # packages that nothing else imports at its top
HANDED_OUT = {
    "Trained",
    "Pending",
    "Phase",
    "Outcome",
    "Result",
    "Run",
    "CecaRound",
    "Interrupted",
}  # nobody makes one by hand
PROTOCOLS = {
    "Solver",
    "Problem",
    "Oracle",
    "OracleLike",
    "Schedule",
    "LinearModel",
    "Streams",
}  # the concrete ones have examples
PUBLIC_FOLDERS = ("mpidec.nn.models", "mpidec.nn.schedules")  # documented under these names
API = [
    "mpidec",
    "mpidec.topology",
    "mpidec.comm.mixing",
    "mpidec.problems",
    "mpidec.solvers",
    "mpidec.record",
    "mpidec.plot",
    "mpidec.sweep",
    "mpidec.testing",
]
if importlib.util.find_spec("torch"):
    API += [
        "mpidec.nn",
        *PUBLIC_FOLDERS,
        "mpidec.reproduce",
        "mpidec.train",
    ]
API += [
    f"mpidec.integrations.{name}"
    for name in ("lightning", "transformers")
    if importlib.util.find_spec(name)
]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


def room(name: str) -> str:
    """The room of a module, by its dotted name."""
    parts = name.split(".")[1:3]
    return ".".join(parts[: 1 + (parts[0] == "comm")]) if parts else "__init__"


def import_statements_of(found: Iterable[ast.AST]) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in found if isinstance(node, (ast.Import, ast.ImportFrom))]


@cache
def import_statements(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    return import_statements_of(ast.walk(tree))


def imports(statements: Iterable[ast.Import | ast.ImportFrom], path: Path) -> list[tuple[str, int]]:
    """Return the absolute dotted names that are imported, with their lines."""
    base = (
        module_name(path).split(".")
        if path.name == "__init__.py"
        else module_name(path).split(".")[:-1]
    )
    found = []
    for node in statements:
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        else:
            origin = base[: len(base) - node.level + 1] if node.level else []
            source = ".".join([*origin, *([node.module] if node.module else [])])
            found += [
                (f"{source}.{alias.name}" if source == "mpidec" else source, node.lineno)
                for alias in node.names
            ]
    return found


@cache
def executed_on_import(tree: ast.Module) -> list[ast.AST]:
    """Return the nodes of `tree` but those in functions and in ``if TYPE_CHECKING`` blocks."""
    functions = ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda
    found, left = [], [tree]
    while left:
        found.append(node := left.pop())
        left += [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, functions)
            and not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
        ]
    return found


def dependencies(tree: ast.AST, path: Path, modules: set[str]) -> set[str]:
    """Return the modules of mpidec that `tree` imports anywhere: at its top, inside functions, for annotations."""
    base, found = module_name(path).split("."), set()
    base = base if path.name == "__init__.py" else base[:-1]
    for node in import_statements(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            origin = base[: len(base) - node.level + 1] if node.level else []
            source = ".".join([*origin, *([node.module] if node.module else [])])
            names = {f"{source}.{alias.name}" for alias in node.names}
            found |= names & modules | ({source} if names - modules else set())
    return found & modules


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the circles of a graph: its strongly connected parts of more than one node, and nodes that reach themselves."""
    number, low, stack, found = {}, {}, [], []

    def visit(node):
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            part = [stack.pop()]
            while part[-1] != node:
                part.append(stack.pop())
            if len(part) > 1 or node in graph[node]:
                found.append(sorted(part))

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return found


@cache
def import_graph() -> dict[str, set[str]]:
    """Return what each module of the package imports of it."""
    modules = {module_name(path) for path in MODULES}
    return {
        module_name(path): dependencies(tree, path, modules) for path, tree in sources().items()
    }


@cache
def sources() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(PACKAGE.parent)}:{line}"


def test_every_room_has_its_place_and_imports_only_rooms_below_it():
    names = list(ROOMS)
    assert {room(module_name(path)) for path in MODULES} <= {*names}, "a room is not in the table"
    for place, name in enumerate(names):
        assert set(ROOMS[name][0]) <= set(names[:place]), name


def test_imports_point_downwards():
    found, modules = [], {module_name(path) for path in MODULES}
    for path, tree in sources().items():
        own = room(module_name(path))
        below, third_party = ROOMS[own]
        found += [
            f"{module_name(path)} imports {target}, which {own} may not"
            for target in dependencies(tree, path, modules)
            if room(target) not in (own, *below)
        ]
        known = ("mpidec", "numpy", "tomli", *third_party)
        found += [
            f"{where(path, line)} imports {name}"
            for name, line in imports(import_statements(tree), path)
            if name.partition(".")[0] not in (*known, *sys.stdlib_module_names)
        ]
    assert not found, found


# What the rooms that only use the package take beside its public names: of `internals`, and of the rooms of comm but mixing.
SHARED = {
    "theory": "ALONE Asynchronous Channel Fault Operator PairwiseSolver Round StepOperator TopologyLike after as_oracle "
    "as_solver as_topology at_step dtype_of is_sampled moves name_of step_size_of targets_of term_of with_step_size x_star_of",
    "testing": "ALONE Asynchronous Codec LinearSteps PushSolver Result adapted after as_topology at_step check_dataclass "
    "is_sampled limits mismatch prox_of rest simulate smoothness_of solution_of solve step_size_of term_of with_step_size",
    "plot": "positions rises table",
    "watch": "ABANDONED COUNTERS",
    "restart": "checkpoint_step is_written open_checked stamp",
    "bench": "MPI CARRIERS COMPILED TRANSPORTS Weights Window library one_on_each ranks_of_node simulate solve "
    "wait_for_other_nodes wait_until weighted_sum",
    "integrations": "TopologyLike mean",
    "bluefog": "MPI Bucket Checked Collectives Pending Timeline Window buckets clock repeatable unscale",
    "sweep": "MPI CHOSEN FLAGS Fingerprint MISSING Outcome Result RunLine View X abort_when_uncaught arrange cannot_resume "
    "check_name check_names displayed drawn file_hashes find flat look on_root own_names ranks rises split "
    "step_size_of timeout together worded",
    "reproduce": "ALONE MPI AVERAGING AtomicFile Fingerprint GRADIENT Training WorkQueue graph interrupts iterate mean_cost "
    "meetings modelled nodes_of on_root open_checked simulate solve stored",
}
# The package's own face reaches where a name is defined: what `import mpidec` loads stays small.
FACES = ("__init__", "__main__")


def imported_names(tree: ast.AST, path: Path) -> list[tuple[str, str, int]]:
    """Return (module, name, line) of each ``from module import name`` of `tree`."""
    base = module_name(path).split(".")
    base = base if path.name == "__init__.py" else base[:-1]
    return [
        (
            ".".join([*base[: len(base) - node.level + 1], *filter(None, [node.module])]),
            alias.name,
            node.lineno,
        )
        for node in import_statements(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    ]


def test_rooms_are_entered_by_their_doors():
    """Their ``__init__``, or ``internals`` where that is public; of comm, at most six of them."""
    found, comm = [], set()
    for path, tree in sources().items():
        own = room(module_name(path))
        for module, name, line in imported_names(tree, path):
            other = room(module)
            if own in FACES or other in (own, "__init__", "comm"):
                continue
            if not own.startswith("comm") and other.startswith("comm"):
                comm.add(module)
            if module not in (f"mpidec.{other}", f"mpidec.{other}.internals", *PUBLIC_FOLDERS):
                found.append(f"{where(path, line)} takes {name} of {module}")
    assert not found, f"{found}: expected of {{room}} or {{room}}.internals"
    assert len(comm) <= 6, comm


def test_who_uses_the_package_only_names_what_is_not_public():
    taken = {client: set() for client in SHARED}
    for path, tree in sources().items():
        own = room(module_name(path))
        if own not in SHARED:
            continue
        for module, name, _ in imported_names(tree, path):
            inside = module.startswith("mpidec.comm.") and module != "mpidec.comm.mixing"
            if inside or module.endswith(".internals"):
                taken[own].add(name)
    assert taken == {client: set(names.split()) for client, names in SHARED.items()}


def test_nothing_takes_what_is_private_to_a_network():
    """What other rooms need of a network has public names."""
    found = [
        f"{module_name(path)}: {match}"
        for path in MODULES
        if not module_name(path).startswith("mpidec.comm.mixing")
        for match in re.findall(r"\bnet(?:work)?\._[a-z]\w*", path.read_text(encoding="utf-8"))
    ]
    assert not found, found


def test_no_module_imports_itself_in_a_circle():
    """Not even inside a function or for an annotation."""
    found = circles(import_graph())
    assert not found, f"modules that import one another: {found}"


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}, "e": {"a"}}) == [
        ["b", "c"],
        ["d"],
    ]
    tree = ast.parse(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..rma import window\n"
        "def f():\n    from .plan import Plan\n    import mpidec.driver.solve\n"
    )
    modules = {
        "mpidec.comm.rma",
        "mpidec.comm.rma.window",
        "mpidec.comm.transport.plan",
        "mpidec.driver.solve",
    }
    assert dependencies(tree, PACKAGE / "comm" / "transport" / "halo.py", modules) == modules - {
        "mpidec.comm.rma"
    }


# The folders of a room, from its ground up; beside its `internals` and ``__init__``, which know them all.
FLOORS = {
    "topology": ("base", "derived", "graphs", "schedules"),
    "comm.mixing": ("codecs", "base", "faults", "phases", "mixers", "local", "network"),
}


@pytest.mark.parametrize("name", FLOORS)
def test_folders_of_a_room_import_those_below_them(name):
    prefix, floors = f"mpidec.{name}.", FLOORS[name]
    place = {floor: at for at, floor in enumerate(floors)}
    found = []
    for module, known in import_graph().items():
        own = module.removeprefix(prefix).partition(".")[0]
        if module.startswith(prefix) and own in place:
            others = {
                one.removeprefix(prefix).partition(".")[0]
                for one in known
                if one.startswith(prefix)
            }
            found += [
                (module, other) for other in others if place.get(other, len(floors)) > place[own]
            ]
    assert not found, f"{found}: {name} has the floors {floors}"


def test_carriers_know_records_and_messages_only():
    """Of windows: slots and what is built on them stand above."""
    known = {"records", "messenger"}
    for name, others in import_graph().items():
        if name.startswith("mpidec.comm.rma.carriers"):
            rest = {one.removeprefix("mpidec.comm.rma.") for one in others if ".comm.rma." in one}
            rest = {one for one in rest if not one.startswith("carriers")} - known
            assert not rest, f"{name} imports {rest}"


def test_heavy_packages_are_imported_where_they_are_used():
    found = [
        f"{where(path, line)} imports {name}"
        for path, tree in sources().items()
        for name, line in imports(import_statements_of(executed_on_import(tree)), path)
        if name.partition(".")[0]
        in LAZY
        - ({"torch"} if room(module_name(path)) in TORCH else set())
        - ({"networkx"} if room(module_name(path)) == "bluefog" else set())
    ]
    assert not found, f"{found}: expected inside the functions that need it"


def test_no_assert_statement():
    found = [
        where(path, node.lineno)
        for path, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
    ]
    assert not found, f"assert at {found}, expected ValueError or TypeError with a message"


def test_no_communicator_at_module_level():
    found = [
        where(path, node.lineno)
        for path, tree in sources().items()
        for node in executed_on_import(tree)
        if isinstance(node, ast.Attribute) and node.attr == "COMM_WORLD"
    ]
    assert not found, f"COMM_WORLD at module level at {found}, expected an argument"


def public_names(module) -> list[str]:
    """Return ``__all__`` of `module` or, without one, the names that it re-exports."""
    return list(
        getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    )


def public_objects() -> dict[str, object]:
    """Return every class and function of the API by the name under which it is defined."""
    found = {}
    for module in map(importlib.import_module, API):
        for thing in (getattr(module, name) for name in public_names(module)):
            if (
                inspect.isclass(thing) or inspect.isfunction(thing)
            ) and thing.__module__.startswith("mpidec"):
                found[f"{thing.__module__}.{thing.__qualname__}"] = thing
    return dict(sorted(found.items()))


@pytest.mark.parametrize("name", API)
def test_api_is_a_table(name):
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    missing = [attribute for attribute in public_names(module) if not hasattr(module, attribute)]
    assert not missing, f"{name}.__all__ names {missing}, which are not there"


def test_public_names_are_documented_with_examples():
    def complete(thing) -> bool:
        text = inspect.getdoc(thing) or ""
        return ("Examples\n--" in text and ">>>" in text) or (
            inspect.isclass(thing) and issubclass(thing, Exception)
        )

    bare = [
        name
        for name, thing in public_objects().items()
        if thing.__name__ not in HANDED_OUT | PROTOCOLS and not complete(thing)
    ]
    assert not bare, f"no docstring with an Examples section: {', '.join(bare)}"


def test_public_methods_are_documented():
    bare = [
        f"{name}.{key}"
        for name, thing in public_objects().items()
        if inspect.isclass(thing)
        for key, member in vars(thing).items()
        if not key.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, (property, classmethod)))
        and not inspect.getdoc(getattr(thing, key))
    ]
    assert not bare, f"no docstring: {', '.join(bare)}"


def test_import_is_light():
    """That of each command, too: `train` trains with PyTorch, and `reproduce` repeats trainings."""
    code = (
        "import importlib, sys; from mpidec.__main__ import COMMANDS\n"
        "for name, (module, _) in COMMANDS.items():\n"
        "    name in ('train', 'reproduce') or importlib.import_module('mpidec.' + module)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    loaded = set(launch.mpirun(0, ["-c", code], check=True).stdout.split()) & {
        *LAZY,
        "scipy",
        "h5py",
    }
    assert not loaded, f"import mpidec imports {loaded}"


@pytest.mark.launch
def test_a_first_mixing_loads_neither_scipy_nor_h5py(mpirun):
    """Many ranks start at once, on few file servers and cores: what a mixing does not need waits until it is needed."""
    program = (
        "import sys, mpidec, numpy as np\n"
        "with mpidec.Network(4) as net:\n"
        "    net.mixer(mpidec.topology.exponential(4))(np.ones((4, 3)))\n"
        "print(sorted({'scipy', 'h5py', 'networkx', 'matplotlib', 'sklearn', 'torch', 'cupy'} & set(sys.modules)))\n"
    )
    assert mpirun(0, ["-c", program], check=True).stdout.strip() == "[]"
