"""Trainings that go on when ranks die (Open MPI), or say that they cannot (MPICH)."""

import os
import re
import sys

import numpy as np
import pytest
from helpers import launch

import mpidec
from mpidec.comm.runtime import MPI, library
from mpidec.topology.internals import restricted

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.most(1), pytest.mark.library]

OPEN_MPI = "Open MPI" in library()


def job(n, *program):
    """Run a program of the tests on `n` ranks, which may die."""
    front = [launch.mpirun_command(n)[0], *(["--with-ft", "ulfm"] if OPEN_MPI else [])]
    command = [*front, "-n", str(n), sys.executable]
    path = os.path.join(launch.ROOT, "tests", *program[0].split("/"))
    process = launch.start([*command, path, *program[1:]], text=True, stdout=-1, stderr=-1)
    return launch.finish(process, 120)


def test_where_a_rank_ends_the_job_the_way_out_is_named():
    model = torch.nn.Linear(2, 1, bias=False)
    with mpidec.Network() as net, torch.no_grad():
        model.weight.zero_()
        if net.size > 1:
            with pytest.raises(ValueError, match="ends the job when a rank dies"):
                mpidec.optim.Averager(model, "ring", net=net, on_failure="drop")


def test_those_that_are_left_train_by_the_dense_equations():
    if MPI.COMM_WORLD.rank or not OPEN_MPI:
        return  # one job at a time
    names = ["gradient_tracking", "choco", "allreduce", "window"]
    done = job(5, "programs/dropped.py", "2", *names)
    assert done.returncode == 0, done.stderr
    assert [line.partition(",")[0] for line in done.stdout.splitlines() if "died" in line] == names


def test_a_training_goes_on_in_its_file_without_rank_0():
    if MPI.COMM_WORLD.rank:
        return
    flags = "--survive --epochs=4 --every=2 --algorithm=d2 --out=lost.h5".split()
    deaths = ["0:optim.averager.Averager.step:150"]
    done = job(2, "helpers/dying.py", *deaths, "--", "train", *flags)
    if not OPEN_MPI:
        assert "mpidec restart -- mpirun" in done.stderr and done.returncode == 2
        return
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2" in done.stderr and "begins anew" in done.stderr
    run = mpidec.read("lost.h5")
    assert run.outcome == "completed" and run.attributes["lost"].startswith("rank 0 of 2")
    assert re.search(rf"^lost +{re.escape(run.attributes['lost'])}$", done.stdout, re.MULTILINE)
    assert run.attributes["workers"] == "1" and np.isnan(run.x[0]).all()
    assert run.metrics["epoch"][-1] >= 4 and run.metrics["loss_mean"][-1] < 0.5
    assert np.isnan(run.agents["loss"][-1]).tolist() == [True, False]


def test_what_is_left_of_a_graph():
    kept = restricted(mpidec.topology.ring(5), [0, 1, 3, 4])
    np.testing.assert_allclose(
        kept.W.toarray(),
        np.array([[1, 1, 0, 1], [1, 2, 0, 0], [0, 0, 2, 1], [1, 0, 1, 1]]) / 3,
        rtol=1e-15,
    )
    with pytest.raises(ValueError, match="star topology is not connected without agents 0"):
        restricted(mpidec.topology.star(4), [1, 2, 3])


def test_the_data_of_the_dead_are_shared_out_from_the_next_epoch():
    from types import SimpleNamespace

    from mpidec.nn.internals import epochs_of

    net = SimpleNamespace(n=3, lo=1, hi=2)
    sampler = mpidec.nn.sampler(range(6), net, shuffle=False)
    under_way = iter(sampler)
    net.n, net.lo, net.hi = 2, 0, 1
    assert [*under_way] == [1, 4] and [*sampler] == [0, 2, 4] and len(sampler) == 3
    # another rank had begun one more epoch when a rank died
    net.n, net.lo, net.hi = 1, 0, 1
    epochs_of(net).divided_before = epochs_of(net).begun + 1
    # Those of another network are not disturbed.
    other = SimpleNamespace(n=2, lo=0, hi=1)
    beside = mpidec.nn.sampler(range(6), other, shuffle=False)
    other.n = 1
    assert [*beside] == [0, 1, 2, 3, 4, 5]
    assert [*sampler] == [0, 2, 4] and [*sampler] == [0, 1, 2, 3, 4, 5]
