"""Settings of the table [mixing] that need each other, or exclude each other; those of [run] on their way to `solve`."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.commands import prepared

from mpidec.comm.mixing.faults.faults import Fault
from mpidec.comm.mixing.mixers.operator import Channel, Operator
from mpidec.experiment import build, command as run

pytestmark = pytest.mark.serial
SMALL = ["--agents=4", "--topology=ring", "--steps=600", "--force"]


@pytest.mark.parametrize(
    "settings, words",
    [
        (["fraction=0.2"], "without a codec: add --set mixing.codec=top_k"),
        (["lose=1.1"], "--set mixing.lose: expected a probability"),
        (["codec=top_k", "lose=0.1"], "mixing.lose: .* add --set mixing.feedback=false"),
        (["lose=0.1", "robust=clip", "tau=1"], "mixing.robust with mixing.lose: .* omit one"),
        (["decay=0.9"], "without mixing.triggered|no effect"),
        (["triggered=0.1", "lose=0.1"], "must have heard the same row"),
    ],
)
def test_what_excludes_or_needs_something_else_is_named(
    settings, words, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert run.main([*SMALL, *(f"--set=mixing.{one}" for one in settings)]) == 2
    error = capsys.readouterr().err
    assert re.search(words, error), error


def test_numbers_may_begin_or_end_with_a_point():
    numbers = prepared(["--set", "mixing.lose=.1", "--step-size=1."], 1)[0]
    assert numbers.mixing.lose == 0.1 and numbers.solver.options["step_size"] == 1.0


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--set=mixing.codec=top_k", "--set=mixing.fraction=3"], "mixing: TopK: fraction is 3"),
        (["--set=run.stop=eror=1e-6"], "run.stop: unknown metric 'eror'"),
    ],
)
def test_values_that_are_refused_are_placed(flags, said, capsys):
    assert run.main([*SMALL, *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_codec_with_which_a_run_diverges_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codec = ["--set=mixing.codec=top_k", "--set=mixing.fraction=0.1", "--step-size=1e-6"]
    run.main([*SMALL, "--solver=exact_diffusion", "--steps=3000", "--every=1000", *codec])
    error = capsys.readouterr().err
    assert "the likely cause is the codec, top_k, fraction 0.1" in error
    assert "step size smaller" not in error


def test_rows_that_are_not_sent_are_a_share_of_the_summary(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--triggered=0.5", "--set=mixing.decay=0.95", "--step-size=0.04", "--steps=100"]
    assert run.main([*SMALL, *words, "--set=run.stop_error=none"]) == 0
    out = capsys.readouterr().out
    assert "triggered 0.5 * 0.95^k" in out
    share = re.search(r"per agent, ([\d.]+)% of the messages", out)
    assert share and 5 < float(share[1]) < 100


@pytest.mark.parametrize(
    "solver, simulated, own",
    [
        ("dgd", False, {}),
        ("async_push_sum", False, {"drop": 0.2, "delay": 0.1}),
        ("async_push_sum", True, {"drop": 0.2, "delay": 0.1}),
    ],
)
def test_what_a_user_sets_for_a_run_reaches_it(solver, simulated, own, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    got = {}

    def begins(*_, **arguments):
        got.update(arguments)
        raise SystemExit(7)

    monkeypatch.setattr(build, "solve", begins)
    words = [f"--{name}={value}" for name, value in own.items()] + ["--seed=5", "--every=3"]
    words += ["--simulate"] * simulated
    with pytest.raises(SystemExit, match="7"):
        run.main(["--agents=4", "--steps=17", f"--solver={solver}", "--step-size=0.1", *words])
    assert {**got, "seed": 5, "every": 3, "steps": 17, **own} == got
    assert (got.get("clock") is not None) == simulated


def of(*flags):
    return [prepared([*flags, f"--seed={seed}"], 1)[0] for seed in (0, 1)]


PLAIN = ("--agents=4", "--solver=dgd", "--topology=ring", "--set=problem.partition=sorted")


class Fading(Fault):
    """A fault of the user's own that says that it draws."""

    call, draws = "attacked", True

    def __str__(self):
        return "fading"


@dataclass(frozen=True)
class Seeded(Fault):
    """One that has a seed, and so draws."""

    seed: int = 0
    call = "attacked"

    def __str__(self):
        return "seeded"


def test_what_may_draw_is_seen_without_a_list(tmp_path, monkeypatch):
    """Faults that draw, a codec and a solver that are not built in."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "from mpidec.comm.mixing.codecs import TopK\n"
        "from mpidec.solvers import DGD\nclass Codec(TopK): pass\nclass Mine(DGD): pass\n"
    )
    assert not build.seeded(*of(*PLAIN))
    assert not build.seeded(*of(*PLAIN, "--set=mixing.codec=top_k"))
    assert not build.seeded(*of(*PLAIN, "--set=mixing.noise=0"))
    assert not build.seeded(*of(*PLAIN, "--set=mixing.attack=0:1", "--set=mixing.repeat=2"))
    for flag in "mixing.codec=rand_k", "mixing.codec=mine.py:Codec", "mixing.noise=.1":
        assert build.seeded(*of(*PLAIN, f"--set={flag}")), flag
    assert build.seeded(*of(*PLAIN, "--solver=mine.py:Mine"))
    for fault in Fading, Seeded:
        monkeypatch.setattr(Operator, "attacked", lambda W, attacks: Channel(W, [fault()]))  # noqa: B023
        assert build.seeded(*of(*PLAIN, "--set=mixing.attack=0:1", "--set=mixing.repeat=2")), fault
