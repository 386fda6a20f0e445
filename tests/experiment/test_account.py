"""The privacy that a run states, against the account of what it has sent."""

from __future__ import annotations

import json

import pytest

from mpidec import theory, topology
from mpidec.experiment.command import main
from mpidec.record import read

pytestmark = pytest.mark.serial
NOISY = ["--problem=least_squares", "--agents=6", "--topology=ring", "--steps=20", "--force"]
NOISY += ["--set=mixing.noise=4", "--set=mixing.clip=0.5", "--out=run.h5", "--step-size=1e-3"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.filterwarnings("ignore:.*integrates the noise of its links")
@pytest.mark.parametrize(
    ("flags", "graph", "options"),
    [
        (["--solver=consensus"], topology.ring(6), {"mixings": 20}),
        (["--solver=consensus", "--set=mixing.repeat=2"], topology.ring(6), {"mixings": 40}),
        (["--solver=dgd"], topology.ring(6), {"mixings": 20, "account": "messages"}),
        (
            ["--solver=gradient_tracking", "--set=mixing.lose=0.1"],
            topology.ring(6),
            {"mixings": 39, "account": "messages"},  # two a step, but one in the first
        ),
        (
            ["--solver=diffusion", "--topology=one_peer_exponential", "--set=mixing.repeat=2"],
            topology.one_peer_exponential(6),
            {"mixings": 40, "account": "messages"},
        ),
    ],
)
def test_the_account_of_a_run_is_that_of_what_it_has_sent(flags, graph, options, capsys):
    size = [] if "consensus" in flags[0] else NOISY[-1:]
    assert main([*NOISY[:-1], *size, *flags]) == 0
    told = json.loads(read("run.h5").attributes["privacy"])
    want = theory.privacy(graph, 4.0, 0.5, **options)
    assert told == {"epsilon": want.worst, "epsilon_mean": want.mean, "delta": want.delta}
    assert f"epsilon {want.worst:.3g} of the worst pair" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*integrates the noise of its links")
@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--solver=consensus", "--set=mixing.lose=0.1"], "mixing has more options"),
        (["--solver=dgd", "--set=mixing.noise=0"], "there is no noise"),
        (
            ["--solver=dgd", "--set=mixing.codec=blockwise8", "--set=mixing.feedback=false"],
            "rows are compressed",
        ),
    ],
)
def test_where_there_is_none_it_is_said_why(flags, why, capsys):
    size = [] if "consensus" in flags[0] else NOISY[-1:]
    assert main([*NOISY[:-1], *size, *flags]) == 0
    assert "privacy" not in read("run.h5").attributes
    assert f"none: {why}" in capsys.readouterr().out
