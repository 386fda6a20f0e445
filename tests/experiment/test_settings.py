"""Experiments: three sources that agree, a text that reruns, and refusals that help."""

from __future__ import annotations

import dataclasses
import re

import pytest
from helpers.commands import prepared
from hypothesis import given, settings, strategies as st

from mpidec import registry as catalogue
from mpidec.datasets.partition import HOW, TAKE
from mpidec.experiment import schema, settings as config
from mpidec.experiment.settings import ConfigError, Experiment, Setting, load, read_toml

pytestmark = pytest.mark.serial
KEYS = {entry.key: entry.flag[2:] for entry in config.FLAGS if entry.flag}
NAMES = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=12
)


def said(**tables) -> dict[str, object]:
    return {
        f"{table}.{key}": value
        for table, content in tables.items()
        for key, value in content.items()
    }


@st.composite
def experiments(draw) -> dict[str, object]:
    """Draw some settings, by ``table.key``, that make an experiment."""
    positive, ratio = st.integers(1, 10**6), st.floats(1e-12, 1e6)
    choice = {
        "problem.name": st.sampled_from(["logistic", "softmax", "least_squares", "huber"]),
        "problem.l2": ratio,
        "problem.partition": st.sampled_from(HOW),
        "problem.batch_size": positive,
        "problem.noise": ratio,
        "problem.standardize": st.booleans(),
        "solver.name": st.sampled_from(["gradient_tracking", "exact_diffusion", "dgd"]),
        "solver.step_size": ratio,
        "topology.name": st.sampled_from(["ring", "exponential", "star"]),
        "topology.weights": st.sampled_from(["metropolis", "uniform"]) | st.floats(0.01, 1),
        "run.agents": positive,
        "run.steps": positive,
        "run.seed": st.integers(0, 2**32 - 1),
        "run.every": positive,
        "run.out": NAMES.map(lambda name: f"{name}.h5"),
        "run.stop_error": ratio,
        "run.trajectory": st.booleans(),
        "run.progress": st.sampled_from(["auto", "bar", "lines", "none"]),
    }
    keys = draw(st.sets(st.sampled_from(sorted(choice))))
    drawn = {key: draw(choice[key]) for key in sorted(keys)}
    for key, strategy in (("alpha", ratio), ("per_agent", positive)):
        if drawn.get("problem.partition") in TAKE[key] and draw(st.booleans()):
            drawn[f"problem.{key}"] = draw(strategy)
    return drawn


def word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@settings(max_examples=60, deadline=None)
@given(experiments(), st.data())
def test_file_flags_and_set_agree(tmp_path_factory, wanted, data):
    path = tmp_path_factory.mktemp("config") / "experiment.toml"
    lines = [f"{key} = {schema.to_toml(value)}" for key, value in wanted.items()]
    path.write_text("\n".join(lines), encoding="utf-8")

    def flag(key: str) -> list[str]:
        text = word(wanted[key])
        return [f"--{KEYS[key]}={text}"] if key in KEYS else ["--set", f"{key}={text}"]

    expected = load([Setting(key, value, "here", text=False) for key, value in wanted.items()])
    by_set = [part for key in wanted for part in ("--set", f"{key}={word(wanted[key])}")]
    mixed = {key: data.draw(st.sampled_from(["file", "flag", "set"]), label=key) for key in wanted}
    some = path.with_name("some.toml")
    some.write_text(
        "\n".join(line for key, line in zip(wanted, lines) if mixed[key] == "file"),
        encoding="utf-8",
    )
    last = [
        part
        for key in wanted
        if mixed[key] != "file"
        for part in (flag(key) if mixed[key] == "flag" else ("--set", f"{key}={word(wanted[key])}"))
    ]
    for argv in (
        [str(path)],
        [part for key in wanted for part in flag(key)],
        by_set,
        [str(some), *last],
    ):
        made = prepared(argv, 1)[0]
        assert made == expected
        assert made.to_toml() == expected.to_toml()
    assert load(read_toml(text=expected.to_toml())) == expected


@pytest.mark.parametrize(
    "said, alpha",
    [
        ([], 0.5),
        (["partition=sizes"], 0.5),
        (["partition=iid"], None),
        (["partition=iid", "alpha=2"], 2.0),  # said together: refused when the data are split
    ],
)
def test_a_new_partition_drops_what_the_file_says_about_the_former(tmp_path, said, alpha):
    path = tmp_path / "e.toml"
    path.write_text('[problem]\npartition = "dirichlet"\nalpha = 0.5\n')
    argv = [str(path), *(f"--set=problem.{each}" for each in said)]
    assert prepared(argv, 1)[0].problem.alpha == alpha


def test_later_sources_win(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text("[run]\nsteps = 1\nseed = 1\nevery = 1\n")
    run = prepared(
        [str(path), "--steps=2", "--set", "run.seed=3", "--seed", "2", "--set", "run.seed=4"], 1
    )[0].run
    assert (run.every, run.steps, run.seed) == (1, 2, 4)


def test_the_default_experiment():
    experiment = load([])
    assert experiment == prepared([], 1)[0] == load(read_toml(text=experiment.to_toml()))
    assert (experiment.problem.name, experiment.problem.data) == ("logistic", "breast_cancer")
    assert (experiment.solver.name, experiment.topology.name) == (
        "gradient_tracking",
        "exponential",
    )
    assert experiment.run.agents == 16 and experiment.run.stop_error == 1e-8
    assert prepared([], 5)[0].run.agents == 5
    assert prepared(["--agents", "7"], 5)[0].run.agents == 7


def test_the_default_graph_is_that_of_the_solver_class():
    for name, solver in catalogue.SOLVERS.items():
        assert prepared(["--solver", name], 1)[0].topology.name == solver.needs.graph
    assert prepared(["--set", "mixing.accelerate=3"], 1)[0].topology.name == "symmetric_exponential"
    assert "step_size" not in load([]).solver.options


@pytest.mark.parametrize(
    "text",
    [
        "auto",
        "safe",
        "inverse",
        "inverse(0.1, delay=10)",
        "step(0.1, 0.5, every=100)",
        "cosine(auto, steps=2000)",
        "warm_up(auto, 100, then=cosine(steps=50))",
        "0.25",
    ],
)
def test_step_sizes_are_numbers_words_and_schedules(text):
    for argv in (["--step-size", text], ["--set", f"solver.step_size={text}"]):
        experiment = prepared(argv, 1)[0]
        assert str(experiment.solver.options["step_size"]) == text
        assert load(read_toml(text=experiment.to_toml())) == experiment


def test_steps_said_are_taken():
    assert prepared(["--steps", "10"], 1)[0].run.stop_error is None
    assert prepared(["--steps", "10", "--stop-error", "1e-3"], 1)[0].run.stop_error == 1e-3
    run = prepared(["--stop-error", "none"], 1)[0].run
    assert (run.steps, run.stop_error) == (config.STEPS, None)


def test_another_component_leaves_the_files_parameters_behind(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(
        '[solver]\nname = "gradient_tracking"\nvariant = "diging"\nstep_size = 0.5\n'
        '[problem]\nname = "huber"\ndelta = 2\n'
    )
    experiment = prepared([str(path), "--solver", "dgd", "--problem", "logistic"], 1)[0]
    assert experiment.solver.options == {"step_size": 0.5}
    assert experiment.problem.options == {"l2": 1.0}
    with pytest.raises(ConfigError, match="variant"):
        prepared(["--solver", "dgd", "--set", "solver.variant=diging"], 1)


def test_solvers_that_draw_follow_the_seed():
    argv = ["--solver=prox_skip", "--seed=7"]
    assert prepared(argv, 1)[0].solver.options["seed"] == 7
    assert prepared([*argv, "--set=solver.seed=3"], 1)[0].solver.options["seed"] == 3
    with pytest.raises(ConfigError, match=r"the runs share: add --set solver\.seed"):
        prepared([*argv, "--runs=2"], 1)


def test_random_topologies_follow_the_seed():
    options = prepared(["--topology=erdos_renyi", "--set=topology.p=0.5", "--seed=7"], 1)[
        0
    ].topology.options
    assert options == {"p": 0.5, "seed": 7}


def test_a_parameter_of_the_data_set():
    argv = [
        "--problem=least_squares",
        "--data=synthetic_least_squares",
        "--set=problem.heterogeneity=4",
        "--set",
        "problem.d=7",
    ]
    assert prepared(argv, 1)[0].problem.options == {
        "heterogeneity": 4.0,
        "d": 7,
        "seed": 0,
    }


OLD = """\
[problem]
name = "huber"
data = "diabetes"
partition = "dirichlet"
alpha = 1.0
standardize = false
delta = 2.0

[solver]
name = "a2cid2"
step_size = "auto"

[topology]
name = "ring"

[run]
agents = 4
steps = 10
seed = 0
every = 10
out = "run.h5"
stop_error = 0.001
trajectory = true
checkpoint = 30.0
progress = "auto"
delay = [0.1, 0.2]
drop = 0.1
straggler = "0:0.5,3:0.1"
"""


def test_the_text_in_a_run_file_is_read_and_written_as_ever():
    assert load(read_toml(text=OLD)).to_toml() == OLD


def test_text_is_toml_whatever_the_strings(tmp_path):
    name = 'a "quoted" \\back\\slash é 数 #.h5'
    experiment = load([Setting("run.out", name, "here", text=False)])
    assert experiment.run.out == name and load(read_toml(text=experiment.to_toml())) == experiment


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ["--solver", "gradient_traking"],
            ["--solver", "gradient_traking", "did you mean gradient_tracking"],
        ),
        (["--solver", "GradientTrackin"], ["gradient_tracking"]),
        (["--topology", "expo"], ["--topology", "exponential"]),
        (["--problem", "logistics"], ["--problem", "logistic"]),
        (["--data", "brest_cancer"], ["--data", "breast_cancer"]),
        (["--solvr", "dgd"], ["unknown flag", "--solver"]),
        (["--set", "solver.varient=atc"], ["--set solver.varient", "variant"]),
        (["--set", "run.stepz=3"], ["--set run.stepz", "steps"]),
        (["--set", "slver.name=dgd"], ["slver", "solver"]),
        (["--set", "steps=3"], ["table.key=value"]),
        (["--steps", "ten"], ["--steps", "an integer > 0", "'ten'"]),
        (["--steps", "0"], ["--steps", "an integer > 0"]),
        (["--steps", "1.5"], ["--steps", "an integer > 0"]),
        (["--agents", "-4"], ["--agents", "an integer > 0"]),
        (["--step-size", "nan"], ["--step-size", "number"]),
        (
            ["--step-size", "fast"],
            ["--step-size", "positive number", "auto", "safe", "inverse(0.1)", "'fast'"],
        ),
        (["--step-size", "0"], ["--step-size", "positive number", "'0'"]),
        (
            ["--step-size", "inverse(-1)"],
            ["--step-size", "start is -1", "expected a finite number > 0"],
        ),
        (
            ["--step-size", "inverse_sqrt(0.1, dealy=3)"],
            [
                "--step-size",
                "unknown parameter of the schedule inverse_sqrt 'dealy'",
                "did you mean delay?",
            ],
        ),
        (
            ["--step-size", "inverse_sqrt dealy"],
            ["--step-size", "'inverse_sqrt dealy'", "name(start, parameter=value)"],
        ),
        (
            ["--step-size", "inverse_sqrd(0.1)"],
            ["unknown schedule 'inverse_sqrd'", "did you mean inverse_sqrt"],
        ),
        (
            ["--solver", "consensus", "--step-size", "0.1"],
            ["--step-size", "consensus has no step size", "omit it"],
        ),
        (
            ["--data", "iris"],
            [
                "unknown data set 'iris': expected one of breast_cancer, digits, diabetes",
                "path of a file",
                ".csv",
            ],
        ),
        (["--seed", "-1"], ["--seed", "an integer >= 0"]),
        (["--seed", str(2**32)], ["--seed"]),
        (["--set", "problem.partition=dirichelt"], ["problem.partition", "dirichlet"]),
        (["--set", "run.trajectory=maybe"], ["true or false"]),
        (["nowhere.toml"], ["nowhere.toml"]),
        (["a.toml", "b.toml"], ["b.toml"]),
        (["--steps"], ["--steps"]),
        (["--out", ""], ["--out", "a string"]),
        (["--out", "a\nb"], ["--out", "a string"]),
    ],
)
def test_refusals_say_what_where_and_what_was_expected(argv, words):
    with pytest.raises(ConfigError) as caught:
        prepared(argv, 1)
    missing = [text for text in words if text not in str(caught.value)]
    assert not missing, f"{caught.value} does not say {missing}"


def test_o_is_the_output_file_of_a_run_and_the_picture_of_a_search(tmp_path):
    path = str(tmp_path / "a.h5")
    assert prepared(["-o", path], 1)[0].run.out == prepared(["--out", path], 1)[0].run.out == path
    experiment, args = prepared(["--tune", "-o", "tune.png"], 1)
    assert args.picture == "tune.png" and experiment.run.out == "run.h5"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[solver\n", ["e.toml", "not valid TOML", "line 1"]),
        ("[slover]\nname = 'dgd'\n", ["e.toml:slover", "solver"]),
        ("[solver]\nnam = 'dgd'\n", ["e.toml:solver.nam", "name"]),
        ("solver = 3\n", ["e.toml:solver", "expected a table"]),
        ("solver = 'dgd'\n", ["e.toml:solver", 'did you mean solver.name = "dgd"?']),
        ("agents = 4\n", ["e.toml:agents", "did you mean run.agents?"]),
        ("[problem]\nagents = 4\n", ["e.toml:problem.agents", "did you mean run.agents?"]),
        ("[solver]\nstep_size = 'big'\n", ["e.toml:solver.step_size", "number", "'big'"]),
        ("[run]\nsteps = true\n", ["e.toml:run.steps", "an integer > 0", "True"]),
        ("[run]\nsteps = '100'\n", ["e.toml:run.steps", "an integer > 0"]),
        ("[run]\nsteps = [1]\n", ["e.toml:run.steps"]),
        ("[solver.step_size]\na = 1\n", ["e.toml:solver.step_size"]),
        ("[problem]\nname = 7\n", ["e.toml:problem.name", "a string"]),
        ("[run]\nsteps = 1979-05-27\n", ["e.toml:run.steps"]),
        ("[problem]\noptions = 1\n", ["e.toml:problem.options"]),
    ],
)
def test_files_are_refused_with_the_place(tmp_path, text, words):
    path = tmp_path / "e.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        prepared([str(path)], 1)
    assert all(part in str(caught.value) for part in words), str(caught.value)


def test_what_was_meant_for_the_experiment_is_guessed(tmp_path):
    data = tmp_path / "mine.csv"
    data.write_text("a,b\n1,2\n")
    (tmp_path / "mine.toml").write_text("")
    for name, words in (
        (data, f"--data {data}"),
        (tmp_path / "mime.toml", "did you mean mine.toml?"),
    ):
        with pytest.raises(ConfigError, match=re.escape(words)):
            prepared([str(name)], 1)


def test_every_component_has_settable_parameters_and_a_line():
    listing = catalogue.listing()
    for table in (
        catalogue.PROBLEMS,
        catalogue.SOLVERS,
        catalogue.TOPOLOGIES,
        catalogue.DATA_SETS,
    ):
        for name, component in table.items():
            assert f"  {name} " in listing
            for parameter in config.parameters(component).values():
                assert schema.describe(parameter.annotation)
    assert "step_size" in config.parameters(catalogue.SOLVERS["dgd"])
    assert "A" not in config.parameters(catalogue.PROBLEMS["logistic"])


def test_an_experiment_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Experiment().run.steps = 3
