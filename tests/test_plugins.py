"""Components of the user's own: from files, modules and entry points, in Python, on the command line, in files, resumed."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import h5py
import networkx as nx
import numpy as np
import pytest
from helpers import launch

import mpidec
from mpidec import plugins, record, registry as catalogue
from mpidec.driver.arguments import as_solver, as_topology
from mpidec.experiment import command as run, settings

SOURCE = '''\
"""My own components."""
from dataclasses import dataclass
from typing import NamedTuple

import networkx as nx
import numpy as np

import helper
import mpidec
from mpidec.comm.mixing.codecs import Float16
from mpidec.problems import Custom, Dataset, LinearModel
from mpidec.solvers import DGD, Solver


@dataclass(frozen=True)
class Mine(Solver):
    """My solver: diffusion with a factor."""

    step_size: float
    factor: float = 1.0

    class State(NamedTuple):
        X: np.ndarray

    def init(self, X, W=None):
        return self.State(X)

    def step(self, s, G, W):
        return self.State(W(s.X - self.factor * self.step_size * G))


class Bare:
    def init(self, X, W=None):
        return X

    def step(self, s, G, W):
        return W(s - G)


def wheel(n, spokes=1):
    """My graph."""
    return nx.circulant_graph(n, range(1, 1 + spokes))


def digraph(n):
    """My directed graph."""
    graph = nx.cycle_graph(n, nx.DiGraph)
    graph.add_edges_from([(0, 2), (0, n - 1), (2, 1)])
    return graph


def size(count):
    return nx.cycle_graph(count)


petersen = nx.petersen_graph()


def data(n, samples: int = 3):
    """My data."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(n * samples, 2)), rng.normal(size=n * samples)


pair = (np.eye(8), [0, 1] * 4)


class Absolute(LinearModel):
    """My loss: sqrt(1 + r^2)."""

    bound = 1.0

    def _loss(self, T, Y):
        return np.sqrt(1 + (T - Y)[..., 0] ** 2)

    def _slope(self, T, Y):
        return (T - Y) / np.sqrt(1 + (T - Y) ** 2)

    def _curvature(self, T, Y):
        return ((1 + (T - Y) ** 2) ** -1.5)[:, :, None]


def quadratic(agents, n, d: int = 2):
    """My problem without data."""
    C = np.array([[i + j / n for j in range(d)] for i in agents]).reshape(len(agents), d)
    return Custom(lambda X: ((X - C) ** 2).sum(axis=1) / 2, lambda X: X - C, m=len(agents), d=d, smoothness=1.0)


class Half(Float16):
    """My codec."""
'''
HELPER = "VALUE = 1\n"
STEPS = ["--steps=20", "--step-size=0.05", "--set=run.progress=none"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my.py").write_text(SOURCE)
    (tmp_path / "helper.py").write_text(HELPER)
    yield tmp_path
    for name in [
        name
        for name in sys.modules
        if name in ("my", "helper") or name.startswith("mpidec_plugin_")
    ]:
        del sys.modules[name]


def x_of(path: str = "run.h5") -> np.ndarray:
    with h5py.File(path) as file:
        return file["trajectory/x"][...]


@pytest.mark.serial
def test_each_kind_from_a_file(here, capsys):
    own = [
        "--problem=my.py:Absolute",
        "--data=my.py:data",
        "--solver=my.py:Mine",
        "--topology=my.py:wheel",
        "--agents=8",
        "--set=solver.factor=0.5",
        "--set=topology.spokes=2",
        "--set=problem.samples=4",
        "--set=problem.l2=0.1",
        "--set=mixing.codec=my.py:Half",
    ]
    assert run.main([*own, *STEPS]) == 0
    said = capsys.readouterr().out
    assert all(
        word in said
        for word in (
            "Absolute",
            "my.py:data",
            "32 samples",
            "my.py:Mine, factor 0.5",
            "my.py:wheel",
            "my.py:Half",
        )
    ), said
    assert str(here) not in said
    text = record.read("run.h5").config
    assert f'name = "{here}/my.py:Mine"' in text
    (here / "elsewhere").mkdir()
    Path("elsewhere/again.toml").write_text(text.replace("run.h5", "again.h5"))
    assert run.main(["elsewhere/again.toml"]) == 0
    assert np.array_equal(x_of(), x_of("again.h5"))


@pytest.mark.serial
def test_python_and_the_command_line_give_the_same_bits(here):
    assert (
        run.main(
            [
                "--problem=my.py:Absolute",
                "--data=my.py:data",
                "--solver=my.py:Mine",
                "--topology=my.py:wheel",
                "--agents=8",
                *STEPS,
            ]
        )
        == 0
    )
    problem = mpidec.problems.load_problem("my.py:data", 8, "my.py:Absolute")
    solver = catalogue.SOLVERS["my.py:Mine"](step_size=0.05)
    result = mpidec.solve(problem, solver, "my.py:wheel", steps=20)
    assert np.array_equal(result.X, x_of()[-1])
    assert record.read("run.h5").metrics["error"][-1] == result.metrics["error"][-1]


@pytest.mark.serial
@pytest.mark.parametrize(
    "solver, weights",
    [("push_pull", "push-pull"), ("gradient_tracking", "sinkhorn"), ("running_sum_tracking", None)],
)
def test_weights_of_a_directed_graph(here, solver, weights):
    """An asynchronous solver, of whose graph only the edges count, needs none."""
    options = [f"--set=topology.weights={weights}"] if weights else ["--simulate"]
    few = [
        "--problem=my.py:quadratic",
        "--topology=my.py:digraph",
        "--agents=5",
        "--steps=900",
        *STEPS[1:],
    ]
    assert run.main([*few, f"--solver={solver}", *options]) == 0
    assert record.read("run.h5").metrics["error"][-1] < 1e-3
    graph = mpidec.topology.from_networkx(nx.cycle_graph(5, nx.DiGraph))
    with pytest.raises(ValueError, match="weights='push' is for networkx graphs"):
        as_topology(graph, 5, "push")


@pytest.mark.serial
def test_a_problem_without_data_and_a_graph_itself(here, capsys):
    assert (
        run.main(
            [
                "--problem=my.py:quadratic",
                "--solver=exact_diffusion",
                "--topology=my.py:petersen",
                "--agents=10",
                "--set=problem.d=3",
                "--steps=300",
                "--step-size=0.5",
            ]
        )
        == 0
    )
    assert record.read("run.h5").metrics["error"][-1] < 1e-9
    capsys.readouterr()
    assert run.main(["--problem=my.py:quadratic", "--data=digits"]) == 2
    assert "takes no data: omit data" in capsys.readouterr().err


@pytest.mark.serial
def test_relative_to_the_experiment_file_and_resumed(here, tmp_path_factory, monkeypatch, capsys):
    Path("e.toml").write_text(
        '[solver]\nname = "my.py:Mine"\nstep_size = 1e-4\n[topology]\nname = "my.py:wheel"\n'
        '[problem]\nname = "least_squares"\ndata = "mine.csv"\n[run]\nagents = 4\nsteps = 10\n'
    )
    Path("mine.csv").write_text("\n".join(f"{i % 7},{i % 5},{i}" for i in range(40)))
    other = tmp_path_factory.mktemp("other")
    monkeypatch.chdir(other)
    with open(here / "my.py", "a") as file:
        file.write("\nimport sys\nprint('code of my.py', file=sys.stderr)\n")
    assert run.main([str(here / "e.toml"), "--out", str(here / "run.h5")]) == 0
    assert run.main(["--resume", str(here / "run.h5"), "--steps=20"]) == 0
    (here / "my.py").rename(here / "gone.py")
    for name in [name for name in sys.modules if name.startswith("mpidec_plugin_")]:
        del sys.modules[name]
    capsys.readouterr()
    assert run.main(["--resume", str(here / "run.h5"), "--steps=30"]) == 2
    said = capsys.readouterr().err
    assert f"{here}/my.py: no such file" in said and "solver.name" in said and said.count("\n") == 1
    (here / "gone.py").rename(other / "my.py")  # moved with the working folder
    assert run.main(["--resume", str(here / "run.h5"), "--steps=30"]) == 0
    first, second = (
        capsys.readouterr().err.splitlines()
    )  # the announcement stands before the code's own words
    assert first.startswith(
        f"mpidec.run: {here}/run.h5 names code that is run now: {other}/my.py:Mine (solver.name)"
    )
    assert second == "code of my.py"


REFUSED = {
    "--solver=your.py:Mine": ("--solver", "your.py: no such file", "did you mean my.py?"),
    "--solver=my.py:Mien": ("--solver", "has no Mien", "did you mean Mine?"),
    "--solver=my.py": ("--solver", "needs the name of a solver in it", "my.py:Mine"),
    "--solver=my.py:wheel": (
        "--solver",
        "cannot be used as a solver",
        "a function, expected a class derived from mpidec.solvers.Solver",
    ),
    "--solver=my.py:Bare": (
        "--solver",
        "does not derive from mpidec.solvers.Solver",
        "class Bare(mpidec.solvers.Solver)",
    ),
    "--solver=my.py:Absolute": (
        "--solver",
        "a class without init and step",
        "init(X, W) and step(s, G, W)",
    ),
    "--topology=my.py:Mine": (
        "--topology",
        "a solver, expected a function of the number of agents n",
    ),
    "--topology=my.py:digraph": (
        'GradientTracking takes weights="sinkhorn"',
        "topology.weights=sinkhorn",
    ),
    "--topology=my.py:size": (
        "--topology",
        "a function of count, expected its first parameter to be n",
    ),
    "--topology=my.py:petersen": (
        "from_networkx has 10 agents, expected 16",
        "build it with n = 16",
    ),
    "--problem=my.py:wheel": (
        "--problem",
        "expected its first parameters to be A and y, or agents",
    ),
    "--problem=my.py:Mine": ("--problem", "a class without value and grad"),
    "--problem=my.py:Absolute": ("requires data", "--data"),
    "--data=my.py:Mine": ("--data", "expected a function that returns (A, y) or a Dataset"),
    "--data=my.py:wheel": ("is a Graph, expected (A, y) or a Dataset",),
    "--set=mixing.codec=my.py:Mine": (
        "mixing.codec",
        "expected a class derived from mpidec.comm.mixing.codecs.Codec",
    ),
    "--solver=nowhere.module:Mine": ("--solver", "no module named 'nowhere'", "FILE.py:NAME"),
    "--solver=broken.py:Mine": (
        "--solver",
        "broken.py cannot be imported: line 3: ZeroDivisionError: division by zero",
    ),
    "--solver=syntax.py:Mine": ("--solver", "line 1: SyntaxError"),
    "--solver=exits.py:Mine": ("--solver", "line 2: SystemExit: 3"),
    "--solver=imports.py:Mine": (
        "--solver",
        "line 1: ModuleNotFoundError: No module named 'not_there'",
    ),
}


@pytest.mark.serial
@pytest.mark.parametrize("argument", REFUSED)
def test_refusals_are_one_line(here, capsys, argument):
    Path("broken.py").write_text("x = 1\n\n1 / 0\n")
    Path("syntax.py").write_text("def :\n")
    Path("exits.py").write_text("import sys\nsys.exit(3)\n")
    Path("imports.py").write_text("import not_there\n")
    assert run.main([argument, "--steps=1"]) == 2
    said = capsys.readouterr().err
    missing = [word for word in REFUSED[argument] if word not in said]
    assert not missing and said.count("\n") == 1, f"{said!r} does not say {missing}"


@pytest.mark.serial
def test_modules_and_entry_points(here, monkeypatch, capsys):
    installed = {
        "mpidec.solvers": "mine = my:Mine\nbroken = nowhere:Mine\n",
        "mpidec.topologies": "wheel = my:wheel\n",
        "mpidec.problems": "absolute = my:Absolute\n",
        "mpidec.datasets": "mydata = my:data\n",
        "mpidec.codecs": "half = my:Half\n",
    }
    info = here / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "".join(f"[{group}]\n{lines}" for group, lines in installed.items())
    )
    monkeypatch.syspath_prepend(str(here))
    importlib.invalidate_caches()
    assert run.main(["--list"]) == 0
    listed = capsys.readouterr().out
    for words in (
        ("mine", "My solver: diffusion with a factor [my:Mine]"),
        ("wheel", "My graph [my:wheel]"),
        ("absolute", "My loss: sqrt(1 + r^2) [my:Absolute]"),
        ("mydata", "My data [my:data]"),
        ("half", "My codec [my:Half]"),
        ("broken", "not available"),
        ("FILE.py:NAME",),
    ):
        assert any(all(word in line for word in words) for line in listed.splitlines()), (
            words,
            listed,
        )
    assert (
        run.main(
            [
                "--problem=absolute",
                "--data=mydata",
                "--solver=mine",
                "--topology=wheel",
                "--set=mixing.codec=half",
                "--agents=6",
                *STEPS,
                "--out=a.h5",
            ]
        )
        == 0
    )
    assert (
        run.main(
            [
                "--problem=my:Absolute",
                "--data=my:data",
                "--solver=my:Mine",
                "--topology=my:wheel",
                "--set=mixing.codec=my:Half",
                "--agents=6",
                *STEPS,
                "--out=b.h5",
            ]
        )
        == 0
    )
    assert np.array_equal(x_of("a.h5"), x_of("b.h5"))
    assert run.main(["--solver=broken"]) == 2
    assert "entry point broken" in capsys.readouterr().err


@pytest.mark.serial
def test_a_table_with_plugins(here):
    table = catalogue.SOLVERS
    assert (
        "my.py:Mine" in table
        and "nothing" not in table
        and list(table) == list(mpidec.solvers.CATALOGUE)
    )
    assert table["my.py:Mine"] is table[str(here / "my.py:Mine")]
    with pytest.raises(KeyError):
        table["nothing"]
    assert (
        plugins.located("my.py:Mine") == f"{here}/my.py:Mine"
        and plugins.located("gone/my.py:Mine") == "gone/my.py:Mine"  # not that of this folder
        and plugins.short(f"{here}/my.py:Mine") == "my.py:Mine"
    )


@pytest.mark.serial
def test_solve_takes_plugins(here):
    problem = mpidec.problems.load_problem((np.eye(8), np.arange(8.0)), n=4, problem="huber")
    same = [
        mpidec.solve(problem, catalogue.SOLVERS["my.py:Mine"](0.1), graph, steps=5).x
        for graph in ("my.py:wheel", nx.cycle_graph(4), "ring")
    ]
    assert np.array_equal(same[0], same[1])
    np.testing.assert_allclose(same[0], same[2], rtol=1e-12)


@pytest.mark.launch
def test_on_several_ranks_with_the_same_bits(here, mpirun):
    own = [
        "--problem=my.py:Absolute",
        "--data=my.py:data",
        "--solver=my.py:Mine",
        "--topology=my.py:wheel",
        "--agents=7",
        *STEPS,
        "--set=problem.l1=0.2",
        "--set=problem.scale=mean",
    ]
    bare = ["--problem=my.py:quadratic", "--solver=my.py:Mine", "--agents=7", *STEPS]
    Path("all.py").write_text(
        "import mpidec\nfrom mpidec.experiment import command as run\n"
        f"assert run.main({[*own, '--out=many.h5']}) == 0\nassert run.main({[*bare, '--out=bare.h5']}) == 0\n"
        "assert run.main(['--solver=my.py:Bare']) == 2\n"
        "with mpidec.Network(7) as net:\n"
        "    problem = mpidec.problems.load_problem('my.py:data', problem='my.py:Absolute', net=net, l1=0.2, scale='mean')\n"
        "    assert problem.m == net.m and problem.x_star is not None\n"
        "    mpidec.solve(mpidec.problems.Subgradient(problem), mpidec.solvers.DGD(0.05, order='atc'), 'my.py:wheel', steps=20,"
        " record='dgd.h5', net=net)\n"
        "mpidec.solve(problem=None, solver='consensus', topology='ring', x0=[[1.0], [2.0], [6.0]], steps=2)\n"
    )
    done = mpirun(3, ["all.py"], check=True)
    assert done.stderr.count("does not derive from mpidec.solvers.Solver") == 1
    assert run.main([*own, "--out=one.h5"]) == 0 and run.main([*bare, "--out=bare_one.h5"]) == 0
    assert np.array_equal(x_of("one.h5"), x_of("many.h5")) and np.array_equal(
        x_of("bare.h5"), x_of("bare_one.h5")
    )
    np.testing.assert_allclose(x_of("dgd.h5")[-1], x_of("one.h5")[-1], rtol=1e-12)


@pytest.mark.parametrize(
    ("table", "name", "key"),
    [
        (catalogue.SOLVERS, "EXTRA", "extra"),
        (catalogue.SOLVERS, "GradientTracking", "gradient_tracking"),
        (catalogue.SOLVERS, "D^2", "d2"),
        (catalogue.SOLVERS, "DIGing", "gradient_tracking"),
        (catalogue.SOLVERS, "Push-DIGing", "push_diging"),
        (catalogue.TOPOLOGIES, "Erdos-Renyi", "erdos_renyi"),
        (catalogue.PROBLEMS, "LogisticRegression", "logistic"),
        (catalogue.DATA_SETS, "Breast-Cancer", "breast_cancer"),
        (catalogue.CODECS, "TopK", "top_k"),
    ],
)
def test_names_of_papers_and_classes_stand_for_components(table, name, key):
    assert table.key(name) == key and table.find(name) is table[key]


def test_a_name_that_may_be_several_components_is_refused():
    table = plugins.Components(
        "solver", "none", {"push_sum": int, "pushsum": float}, lambda thing: None
    )
    assert table.find("pushsum") is float
    with pytest.raises(ValueError, match="'PushSum' may be push_sum or pushsum: write one of them"):
        table.find("PushSum")


def test_a_name_of_a_paper_has_its_options(tmp_path):
    assert as_solver("DIGing") == mpidec.solvers.GradientTracking(variant="diging")
    name = settings.Setting("solver.name", "DIGing", "--solver")
    wanted = settings.load([name, settings.Setting("problem.data", "Digits", "--data")])
    assert wanted.solver.options == {"variant": "diging"} and wanted.problem.data == "digits"
    assert settings.load(settings.read_toml(text=wanted.to_toml())) == wanted
    with pytest.raises(
        mpidec.ConfigError, match="DIGing is gradient_tracking with variant = diging: omit it"
    ):
        settings.load([name, settings.Setting("solver.variant", "atc", "--set solver.variant")])


FILES = """
import sys, numpy as np, mpidec
from mpidec.problems import LeastSquares
problem = LeastSquares(np.ones((4, 3, 2)), np.ones((4, 3)))
mpidec.solve(problem, mpidec.solvers.EXTRA(0.01), mpidec.topology.exponential(4), steps=1)
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
for solver in ("extra", "ExactDiffusion"):
    mpidec.solve(problem, solver, "exponential", steps=1)
opened = [name for name in opened if "__pycache__" not in name and not name.endswith(".so")]
print(sum("-info" in name for name in opened), len(opened) < 20, opened)
"""


@pytest.mark.serial
def test_built_in_names_open_no_files_of_packages(tmp_path):
    command = [sys.executable, "-c", FILES]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=launch.environment()
    )
    assert done.stdout.startswith("0 True"), (done.stdout, done.stderr)


def test_entry_points_are_read_once(monkeypatch):
    reads = []
    monkeypatch.setattr(
        "importlib.metadata.entry_points",
        lambda **_: reads.append(1) or importlib.metadata.EntryPoints(()),
    )
    plugins._declared.cache_clear()
    table = plugins.Components("solver", "mpidec.solvers", {"dgd": dict}, lambda thing: None)
    assert not any(table.knows(name) for name in ("one", "two")) and len(table) == 1
    plugins._declared.cache_clear()
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("room", "name", "hint"),
    [
        (mpidec, "slove", "did you mean solve"),
        (mpidec.solvers, "ExactDifusion", "did you mean ExactDiffusion"),
        (mpidec.topology, "rign", "did you mean ring?"),
        (mpidec.problems, "LeastSqares", "did you mean LeastSquares?"),
        (mpidec.solvers, "zzz", "no attribute 'zzz'"),
    ],
)
def test_a_public_name_that_is_misspelt_has_its_nearest(room, name, hint):
    with pytest.raises(AttributeError, match=f"module '{room.__name__}' has no attribute .*") as e:
        getattr(room, name)
    assert hint in str(e.value)
    assert not hasattr(room, "_private")
