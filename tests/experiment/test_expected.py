"""What a run says that theory expects of it, against what the run does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mpidec.experiment.command import main
from mpidec.plot import figure
from mpidec.plot.command import main as plot
from mpidec.record import read

pytestmark = pytest.mark.serial
SMALL = ["--problem=least_squares", "--data=synthetic_least_squares", "--set=problem.d=2"]
SMALL += [
    "--set=problem.p=6",
    "--agents=5",
    "--topology=ring",
    "--quiet",
    "--force",
    "--out=run.h5",
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*flags: str):
    assert main([*SMALL, *flags]) == 0
    found = read("run.h5")
    return found.metrics, json.loads(found.attributes.get("expected", "{}"))


def test_the_rate_of_a_run():
    metrics, told = run("--solver=extra", "--step-size=0.05", "--steps=300", "--set=run.every=50")
    error = metrics["error_rms"]
    assert (error[-1] / error[-2]) ** (1 / 50) == pytest.approx(told["rate"], rel=1e-3)
    assert told["msd"] == told["error_rms"] == 0 and error[-1] > 1e-13
    assert told["steps"] == metrics["step"].tolist()
    np.testing.assert_allclose(told["curve"], error, rtol=1e-5)
    dashed = figure("run.h5", theory=True).axes[0].lines[-1].get_ydata()
    np.testing.assert_array_equal(dashed, told["curve"])


def test_where_a_biased_run_rests(capsys):
    flags = ["--solver=dgd", "--step-size=0.05", "--steps=800", "--set=run.every=400"]
    metrics, told = run(*flags)
    assert metrics["error_rms"][-1] == pytest.approx(told["error_rms"], rel=1e-5)
    wide = [flag for flag in SMALL if flag != "--quiet"]
    assert main([*wide, *flags]) == 0
    rms = told["error_rms"]
    assert (
        f"plateau at error_rms {rms:.2e} ({20 * np.log10(rms):.1f} dB)\n" in capsys.readouterr().out
    )


def test_where_a_run_with_noise_rests():
    metrics, told = run(
        "--solver=exact_diffusion", "--step-size=0.02", "--steps=3000", "--set=problem.noise=1.0"
    )
    rest = np.sqrt((metrics["error_rms"][100:] ** 2).mean())
    assert rest == pytest.approx(told["error_rms"], rel=0.15)


def test_where_a_simulated_pairwise_run_with_noise_rests():
    flags = ["--simulate", "--step-size=0.02", "--steps=600", "--set=problem.noise=5.0"]
    metrics, told = run("--solver=pairwise_gossip", *flags)
    rest = np.sqrt((metrics["error_rms"][20:] ** 2).mean())
    assert rest == pytest.approx(told["error_rms"], rel=0.1)
    assert told["curve"][-1] == pytest.approx(told["error_rms"], rel=1e-6)


STREAMS = """
import numpy as np
from mpidec.problems import Stream

def draw(rng, agent, k):
    u = rng.standard_normal(2)
    return u, u @ [1.0, -2.0] + 0.3 * rng.standard_normal()

def lms(agents):
    return Stream(draw, len(agents), 2, lo=agents.start, x_star=[1.0, -2.0])
"""


@pytest.mark.filterwarnings("ignore:.*integrates the noise of its links")
def test_where_noise_of_links_leads(capsys):
    flags = ["--step-size=0.02", "--steps=4000", "--set=mixing.noise=0.01", "--set=run.every=5"]
    metrics, told = run("--solver=wang_elia", *flags)
    found = np.sqrt((metrics["error_rms"][200:] ** 2).mean())
    assert found == pytest.approx(told["error_rms"], rel=0.1)
    wide = [flag for flag in SMALL if flag != "--quiet"]
    assert main([*wide, "--solver=extra", *flags]) == 0
    assert "the solver integrates the noise of its links" in capsys.readouterr().out


def test_where_the_streams_of_users_plateau(folder):
    Path("own.py").write_text(STREAMS)
    argv = ["--problem=own.py:lms", "--solver=dgd", "--step-size=0.1", "--steps=2000"]
    assert main([*argv, "--agents=5", "--topology=ring", "--quiet", "--out=run.h5"]) == 0
    found = read("run.h5")
    rest = np.sqrt((found.metrics["error_rms"][100:] ** 2).mean())
    told = json.loads(found.attributes["expected"])
    assert rest == pytest.approx(told["error_rms"], rel=0.1)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--solver=extra", "--set=mixing.codec=float16"], "mixing has options"),
        (["--solver=extra", "--set=mixing.lose=0.1"], "mixing has options"),
        (
            ["--solver=wang_elia", "--set=mixing.noise=.1", "--set=mixing.lose=.1"],
            "mixing has options",
        ),
        (["--solver=dgd", "--step-size=inverse(0.1)"], "the step size changes"),
        (["--solver=adaptive_gradient_tracking"], "adapts its steps"),
        (["--solver=nids", "--set=problem.l1=0.01"], "has the term"),
        (["--solver=a2cid2", "--simulate", "--set=run.delay=0.1"], "asynchronous"),
        (["--solver=extra", "--set=problem.d=70"], "more than 300 unknowns"),
        (["--solver=prox_skip"], "does not repeat"),
        (
            ["--solver=diffusion", "--topology=random_matchings", "--set=topology.graph=ring"],
            "never repeats",
        ),
        (
            [
                "--solver=dgd",
                "--problem=huber",
                "--data=synthetic_least_squares",
                "--set=problem.delta=0.1",
            ],
            "not quadratic",
        ),
    ],
)
def test_where_theory_does_not_apply_it_is_said_why(flags, why, capsys):
    step = [] if any("step-size" in flag for flag in flags) else ["--step-size=0.01"]
    assert run(*flags, *step * ("adaptive" not in flags[0]), "--steps=20")[1] == {}
    assert why in read("run.h5").attributes["no_theory"]
    assert plot(["run.h5", "--theory", "-o", "a.png"]) == 2
    assert why in capsys.readouterr().err
