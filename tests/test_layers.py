"""The architecture is a test: who may import whom, what a module may hold, what `import mpidec` costs."""
from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path

import pytest

import launch

pytestmark = pytest.mark.serial

PACKAGE = Path(__file__).resolve().parent.parent / "mpidec"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Layer: (what it may import of mpidec, what it may import of others beside the standard library and numpy).
# The rows stand in the order of the layers, but for the last five: each imports only what stands above it.
LAYERS = {
    "_streams": ((), ()),
    "_cores": ((), ()),
    "_installed": ((), ()),
    "_figure": ((), ("matplotlib",)),
    "plugins": ((), ()),
    "topology": (("_figure",), ("scipy", "networkx", "matplotlib")),
    "nn": ((), ("torch",)),
    "problems": (("_streams", "plugins", "nn"), ("scipy", "sklearn", "torch")),
    "arrays": ((), ("torch", "cupy")),
    "kernels": (("topology", "arrays"), ("scipy",)),
    "runtime": (("_cores", "_installed", "topology", "arrays", "kernels"), ("mpi4py", "cupy", "torch")),
    "checks": (("topology", "arrays", "kernels", "runtime"), ("mpi4py",)),
    "transport": (("topology", "arrays", "kernels", "runtime", "checks"), ("mpi4py",)),
    "rma": (("topology", "arrays", "kernels", "runtime", "checks", "transport"), ("mpi4py",)),
    "mixing": (("_streams", "topology", "arrays", "kernels", "runtime", "checks", "transport", "rma"),
               ("mpi4py", "scipy", "torch", "cupy")),
    "solvers": (("kernels",), ()),
    "stepsize": (("_streams", "topology", "arrays", "kernels", "runtime", "checks", "transport", "rma", "mixing",
                  "solvers"),
                 ("mpi4py", "scipy", "matplotlib")),
    "record": ((), ("scipy", "h5py")),
    "optim": (("plugins", "resolve", "nn", "topology", "runtime", "checks", "mixing", "solvers"), ("mpi4py", "scipy", "torch")),
    "plot": (("_figure", "catalogue", "plugins", "record"), ("h5py", "matplotlib", "mpi4py")),
}
ORDER = [name for name in LAYERS if name not in ("solvers", "stepsize", "record", "optim", "plot")]
MPI = {name for name, (_, others) in LAYERS.items() if "mpi4py" in others} | {"_selftest", "asynchronous", "reproduce", "sweep",
                                                                               "train", "tune"}
LAZY = {"networkx", "sklearn", "matplotlib", "torch", "cupy", "rich"}
TORCH = {"nn", "optim", "train"}                                     # packages that nothing else imports at its top
ENTRY_POINTS = {"__main__", "run", "bench", "doctor"}       # they may import anything; nothing imports them
FLAGS = {"sweep": "run", "train": "run"}                    # but for commands with the same flags
HANDED_OUT = {"Trained", "Pending", "Phase", "Outcome", "Result", "Run", "CecaRound", "Interrupted"}    # nobody makes one by hand
PROTOCOLS = {"Solver", "Problem", "Oracle", "Schedule", "LinearModel", "Streams"}         # the concrete ones have examples
API = ["mpidec", "mpidec.topology", "mpidec.mixing", "mpidec.problems", "mpidec.solvers", "mpidec.record", "mpidec.plot",
       "mpidec.sweep"]
if importlib.util.find_spec("torch"):
    API += ["mpidec.nn", "mpidec.nn.models", "mpidec.nn.schedules", "mpidec.reproduce", "mpidec.train"]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def layer(path: Path) -> str:
    """Return the first name under mpidec: a package or a top-level module."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree: ast.AST, path: Path) -> list[tuple[str, int]]:
    """Return the absolute dotted names that `tree` imports, with their lines."""
    base = module_name(path).split(".") if path.name == "__init__.py" else module_name(path).split(".")[:-1]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = base[:len(base) - node.level + 1] if node.level else []
            source = ".".join([*origin, *([node.module] if node.module else [])])
            found += [(f"{source}.{alias.name}" if source == "mpidec" else source, node.lineno) for alias in node.names]
    return found


def executed_on_import(tree: ast.Module) -> ast.Module:
    """Return `tree` without functions and without ``if TYPE_CHECKING`` blocks."""
    class Strip(ast.NodeTransformer):
        def visit_FunctionDef(self, node):
            return None

        visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

        def visit_If(self, node):
            return None if "TYPE_CHECKING" in ast.unparse(node.test) else self.generic_visit(node)

    return Strip().visit(tree)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def dependencies(tree: ast.AST, path: Path, modules: set[str]) -> set[str]:
    """Return the modules of mpidec that `tree` imports anywhere: at its top, inside functions, for annotations."""
    base, found = module_name(path).split("."), set()
    base = base if path.name == "__init__.py" else base[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin = base[:len(base) - node.level + 1] if node.level else []
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


def import_graph() -> dict[str, set[str]]:
    """Return what each module of the package imports of it."""
    modules = {module_name(path) for path in MODULES}
    return {module_name(path): dependencies(parsed(path), path, modules) for path in MODULES}


@pytest.fixture(params=MODULES, ids=module_name)
def source(request) -> tuple[Path, str, ast.Module]:
    text = request.param.read_text(encoding="utf-8")
    return request.param, text, ast.parse(text)             # a fresh tree for each test, which may change it


def test_the_table_of_layers_points_one_way():
    for place, name in enumerate(ORDER):
        assert set(LAYERS[name][0]) <= set(ORDER[:place]), name


def test_imports_point_downwards(source):
    path, _, tree = source
    own = layer(path)
    below, third_party = LAYERS.get(own, (None, None))
    for name, line in imports(tree, path):
        top, _, rest = name.partition(".")
        where = f"{path.relative_to(PACKAGE.parent)}:{line} imports {name}"
        if top == "mpidec":
            target = rest.partition(".")[0]
            assert target not in ENTRY_POINTS - {own, FLAGS.get(own)}, f"{where}: nothing imports an entry point"
            if below is not None and target != own:
                assert target in below, f"{where}: {own} may import {', '.join(below) or 'nothing'} of mpidec"
        elif below is not None and top not in sys.stdlib_module_names and top not in ("numpy", "tomli"):
            assert top in third_party, f"{where}: {own} may import {', '.join(('numpy', *third_party))}"
        elif top == "mpi4py":
            assert own in ENTRY_POINTS | MPI, f"{where}: only {', '.join(sorted(ENTRY_POINTS | MPI))} know MPI"


def test_no_module_imports_itself_in_a_circle():
    """Not even inside a function or for an annotation."""
    found = circles(import_graph())
    assert not found, f"modules that import one another: {found}"


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}, "e": {"a"}}) == [["b", "c"], ["d"]]
    tree = ast.parse("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..mixing import network\n"
                     "def f():\n    from .plan import Plan\n    import mpidec.solve\n")
    modules = {"mpidec.mixing", "mpidec.mixing.network", "mpidec.transport.plan", "mpidec.solve"}
    assert dependencies(tree, PACKAGE / "transport" / "halo.py", modules) == modules - {"mpidec.mixing"}


def test_inside_of_mixing():
    """Codecs know nothing of mixing, and nothing below the network knows the network, or the local-view calls, which it has."""
    for name, known in import_graph().items():
        inside = {other.removeprefix("mpidec.mixing.") for other in known if other.startswith("mpidec.mixing.")}
        part = name.removeprefix("mpidec.mixing.")
        if name.startswith("mpidec.mixing.codecs"):
            assert not {one for one in inside if not one.startswith("codecs")}, f"{name} imports {inside}"
        elif name.startswith("mpidec.mixing."):
            assert "network" not in inside, f"{name} imports the network"
            if part != "network" and not part.startswith("local"):
                assert not {one for one in inside if one.startswith("local")}, f"{name} imports {inside}"


def test_heavy_packages_are_imported_where_they_are_used(source):
    path, _, tree = source
    lazy = LAZY - {"torch"} if layer(path) in TORCH else LAZY
    heavy = [name for name, _ in imports(executed_on_import(tree), path) if name.partition(".")[0] in lazy]
    assert not heavy, f"{path.name} imports {heavy} at its top, expected inside the functions that need it"


def test_no_assert_statement(source):
    path, _, tree = source
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert not lines, f"{path.name}: assert at lines {lines}, expected ValueError or TypeError with a message"


def test_no_communicator_at_module_level(source):
    path, _, tree = source
    names = [node.attr for node in ast.walk(executed_on_import(tree)) if isinstance(node, ast.Attribute)]
    assert "COMM_WORLD" not in names, f"{path.name}: COMM_WORLD at module level, expected an argument"


def public_names(module) -> list[str]:
    """Return ``__all__`` of `module` or, without one, the names that it re-exports."""
    return list(getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")]))


def public_objects() -> dict[str, object]:
    """Return every class and function of the API by the name under which it is defined."""
    found = {}
    for module in map(importlib.import_module, API):
        for thing in (getattr(module, name) for name in public_names(module)):
            if (inspect.isclass(thing) or inspect.isfunction(thing)) and thing.__module__.startswith("mpidec"):
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
        return ("Examples\n--" in text and ">>>" in text) or (inspect.isclass(thing) and issubclass(thing, Exception))

    bare = [name for name, thing in public_objects().items()
            if thing.__name__ not in HANDED_OUT | PROTOCOLS and not complete(thing)]
    assert not bare, f"no docstring with an Examples section: {', '.join(bare)}"


def test_public_methods_are_documented():
    bare = [f"{name}.{key}" for name, thing in public_objects().items() if inspect.isclass(thing)
            for key, member in vars(thing).items()
            if not key.startswith("_") and (inspect.isfunction(member) or isinstance(member, (property, classmethod)))
            and not inspect.getdoc(getattr(thing, key))]
    assert not bare, f"no docstring: {', '.join(bare)}"


def test_import_is_light():
    code = "import sys, mpidec; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = set(launch.mpirun(0, ["-c", code], check=True).stdout.split()) & {*LAZY, "scipy", "h5py"}
    assert not loaded, f"import mpidec imports {loaded}"


@pytest.mark.launch
def test_a_first_mixing_loads_neither_scipy_nor_h5py(mpirun):
    """Many ranks start at once, on few file servers and cores: what a mixing does not need waits until it is needed."""
    program = ("import sys, mpidec, numpy as np\n"
               "with mpidec.Network(4) as net:\n"
               "    net.mixer(mpidec.topology.exponential(4))(np.ones((4, 3)))\n"
               "print(sorted({'scipy', 'h5py', 'networkx', 'matplotlib', 'sklearn', 'torch', 'cupy'} & set(sys.modules)))\n")
    assert mpirun(0, ["-c", program], check=True).stdout.strip() == "[]"
