"""`mpidec.train`: fit, the command, files, resumed trainings, curves."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import signal
import time
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from helpers import launch
from helpers.sets import first

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

import mpidec  # noqa: E402
from mpidec.record.internals import Fingerprint  # noqa: E402
from mpidec.train import Settings, fit, loop  # noqa: E402
from mpidec.train.command import main  # noqa: E402
from mpidec.train.files import TrainFile  # noqa: E402
from mpidec.train.loop import Training  # noqa: E402
from mpidec.train.settings import read_toml  # noqa: E402
from mpidec.train.states import flat, nested  # noqa: E402

pytestmark = pytest.mark.most(1)

METRICS = [
    *("time", "rounds", "bytes", "consensus", "accuracy_worst", "loss_worst", "accuracy_mean"),
    *("accuracy_consensus", "loss_mean", "loss_consensus", "epoch", "samples_per_second"),
    *("train_loss", "lr"),
]
QUICK = {"epochs": 2, "every": 1, "batch": 32}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def net(comm):
    with mpidec.Network(max(5, comm.size), comm) as net:  # blocks of one and of several workers
        yield net


def parameters(trained):
    return [p.detach() for model in trained.models for p in model.state_dict().values()]


def test_learns_and_records(net, shared_tmp):
    path = str(shared_tmp / "train.h5")
    trained = fit(
        Settings(algorithm="relay", topology="chain", alpha=0.5, epochs=6, every=3, out=path),
        net=net,
    )
    assert list(trained.metrics) == ["step", *METRICS] and trained.outcome == "completed"
    assert trained.metrics["epoch"].tolist() == [0, 3, 6] and trained.accuracy.shape == (3, net.n)
    assert trained.metrics["accuracy_worst"][-1] == trained.accuracy[-1].min() > 0.8
    assert (np.diff(trained.metrics["bytes"]) > 0).all() and (
        trained.metrics["samples_per_second"][1:] > 0
    ).all()
    samples = trained.metrics["samples_per_second"][1:] * np.diff(trained.metrics["time"])
    np.testing.assert_allclose(
        samples, np.diff(trained.metrics["step"]) * trained.settings.batch * net.n
    )
    assert len(trained.models) == net.m and not any(
        isinstance(model, mpidec.nn.Stacked) for model in trained.models
    )
    run = mpidec.read(path)
    assert run.outcome == "completed" and run.x.shape == (
        net.n,
        sum(p.numel() for p in trained.models[0].parameters()),
    )
    assert np.array_equal(run.agents["accuracy"], trained.accuracy)
    assert np.array_equal(run.metrics["bytes"], trained.metrics["bytes"])
    assert np.array_equal(
        run.x[net.lo],
        torch.cat([p.detach().flatten() for p in trained.models[0].parameters()]).numpy(),
    )
    assert (
        run.attributes["agents"] == net.n
        and run.attributes["ranks"] == net.size
        and len(run.topology) == 1
    )
    assert Settings.load(read_toml(text=run.config)) == trained.settings


def test_same_seed_same_bits_and_global_random_numbers_stay(net):
    state = torch.get_rng_state()
    dropout = {"dropout": 0.2, "dim": 8, "layers": 1}
    a, b = (
        fit(net=net, model="transformer", model_options=dropout, batch=16, epochs=1)
        for _ in range(2)
    )
    assert all(map(torch.equal, parameters(a), parameters(b))) and torch.equal(
        state, torch.get_rng_state()
    )


@pytest.mark.parametrize(
    "algorithm, model",
    [("atc", {}), ("awc", {}), ("relay", {}), ("atc", {"dropout": 0.2, "dim": 8, "layers": 1})],
    ids=["atc", "awc", "relay", "dropout"],
)
def test_resumed_training_equals_an_uninterrupted_one(
    net, shared_tmp, monkeypatch, algorithm, model
):
    clock = itertools.count()
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    settings = Settings(
        algorithm=algorithm, schedule="relaysgd", out=str(shared_tmp / "train.h5"), **QUICK
    )
    if model:
        settings = dataclasses.replace(
            settings, model="transformer", model_options=model, batch=64, epochs=1
        )
    whole = fit(settings, net=net, out=None)

    sent = []

    def interrupt(step, steps, metrics):  # in the middle of an epoch, noticed by one rank
        if step == min(steps // 2 + 1, steps - 2) and net.rank == net.size - 1 and not sent:
            sent.append(step)
            os.kill(os.getpid(), signal.SIGINT)

    half = fit(settings, net=net, progress=interrupt)
    assert half.outcome == "interrupted" and half.metrics["step"][-1] < whole.metrics["step"][-1]
    assert mpidec.read(settings.out).outcome == "interrupted"
    rest = fit(settings, net=net, resume=True)
    assert (
        all(map(torch.equal, parameters(whole), parameters(rest))) and rest.outcome == "completed"
    )
    again = (
        whole.metrics["bytes"][-1] // (whole.metrics["rounds"][-1] + 1) if algorithm == "awc" else 0
    )
    assert (
        rest.metrics["bytes"][-1] == whole.metrics["bytes"][-1] + again
    )  # rows under way at the end are sent again
    assert np.array_equal(rest.accuracy[-1], whole.accuracy[-1])
    assert np.array_equal(mpidec.read(settings.out).metrics["step"], rest.metrics["step"])
    assert (np.diff(rest.metrics["time"]) > 0).all()  # by a clock that shows the next second


@pytest.mark.mpi(min_size=3)
def test_states_of_several_nodes_are_in_files_beside_that_of_the_training(shared_tmp, monkeypatch):
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "2")
    path, moved = shared_tmp / "train.h5", shared_tmp / "elsewhere"
    with mpidec.Network() as net:
        settings = Settings(**{**QUICK, "epochs": 3, "schedule": "constant", "out": str(path)})
        whole = fit(settings, net=net, out=None)
        fit(settings, net=net, epochs=2)
        net.barrier()
        of_nodes = {f"rank{first}" for first in range(0, net.size, 2)}
        beside = [name for name in os.listdir(shared_tmp) if "rank" in name]
        assert {name.rsplit(".")[-1] for name in beside} == of_nodes
        assert len(beside) == 2 * len(of_nodes)  # of the checkpoint, and of the result
        assert [*mpidec.record.last_checkpoint(path)[1]] == ["shards"]
        net.barrier()
        if net.rank == 0:  # a set that a killed job has left, and another folder
            (shared_tmp / "train.h5.0123abcd.rank0").write_bytes(b"")
            moved.mkdir()
            for name in os.listdir(shared_tmp):
                if name.startswith("train.h5"):
                    (shared_tmp / name).rename(moved / name)
        net.barrier()
        settings = dataclasses.replace(settings, out=str(moved / "train.h5"))
        rest = fit(settings, net=net, resume=True)
        assert all(map(torch.equal, parameters(whole), parameters(rest)))
        net.barrier()
        assert len([name for name in os.listdir(moved) if "rank" in name]) == 2 * len(of_nodes)
        mine = torch.cat([values.flatten() for values in parameters(rest)])
        assert np.array_equal(mpidec.read(settings.out).x[net.lo], mine)
        net.barrier()
        if net.rank == 0:
            for name in moved.glob("*.rank2"):
                name.unlink()
        net.barrier()
        with pytest.raises(OSError, match=r"states of rank 2 .*keep the files"):
            fit(settings, net=net, resume=True, epochs=4)


@pytest.mark.mpi(min_size=3)
def test_states_that_the_file_refers_to_stay_while_it_has_later_records(shared_tmp, monkeypatch):
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "2")
    path, known = str(shared_tmp / "train.h5"), Fingerprint({})
    record = {"step": 0, "loss": 1.0}
    with mpidec.Network() as net:
        file = TrainFile(net, path)
        file.create("", 0, "", 1, ["loss"], [], None, 3, known)
        file.append(0, record, ())
        file.checkpoint(0, {"k": 0})
        file.append(10, record, ())
        file.abandon("", "failed")
        for _ in range(2):
            file = TrainFile(net, path)
            assert file.load(known, lambda text: {}, False)[:2] == (0, {"k": 0})
            file.resume(0, "", known)
            file.checkpoint(5, {"k": 5})
            file.abandon("", "failed")


def test_what_shapes_the_curve_of_a_training_is_refused_by_name(net, shared_tmp):
    path = shared_tmp / "train.h5"
    settings = Settings(out=str(path), epochs=1, batch=100)
    fit(settings, net=net)
    before = path.read_bytes()
    for change, words in (
        ({"lr": 0.2}, "optimizer.lr was 0.1, is now 0.2"),
        ({"momentum": 0.5}, "optimizer.momentum was 0.9, is now 0.5"),
        ({"weight_decay": 0.1}, "optimizer.weight_decay was"),
        ({"optimizer": "adam"}, "optimizer.name was sgd, is now adam"),
        ({"schedule": "constant"}, "optimizer.schedule was cosine, is now constant"),
        ({"clip": 1.0}, "optimizer.clip was None, is now 1.0"),
        ({"batch": 16}, "train.batch was 100, is now 16"),
        ({"seed": 1}, "train.seed was 0, is now 1"),
        ({"algorithm": "relay", "topology": "chain"}, "algorithm.name was atc, is now relay"),
        ({"topology": "chain"}, "topology.name was .*, is now chain"),
        ({"model_options": {"hidden": [8]}}, "model.hidden was not set, is now 8"),
        ({"alpha": 1.0}, "data.alpha was 0.1, is now 1.0"),
    ):
        with pytest.raises(ValueError, match=f"train.h5: .*{words}"):
            fit(settings, net=net, resume=True, epochs=2, **change)
    words = f"train.workers was {net.n}, is now {net.n + 1}"
    with mpidec.Network(net.n + 1, net.comm) as more, pytest.raises(ValueError, match=words):
        fit(settings, net=more, resume=True, epochs=2)
    assert path.read_bytes() == before
    fit(settings, net=net, resume=True, changed=True, epochs=2, lr=0.2)
    fit(settings, net=net, resume=True, epochs=3, lr=0.2, every=3)
    parts = mpidec.read(path).attributes["resumed"].splitlines()
    assert "changed: optimizer.lr was 0.1, is now 0.2, command: " in parts[0]
    assert "changed" not in parts[1] and len(parts) == 2


@pytest.mark.parametrize("algorithm", ["async_push_sum", "a2cid2"])
def test_asynchronous_training_goes_on_from_its_file(shared_tmp, algorithm):
    with mpidec.Network() as net:
        settings = Settings(
            **{
                **QUICK,
                "algorithm": algorithm,
                "topology": "ring",
                "epochs": 2,
                "every": 1,
                "workers": net.n,
                "out": str(shared_tmp / "train.h5"),
            }
        )
        first = fit(settings, net=net)
        with Training(dataclasses.replace(settings, epochs=3), net, resume=True) as training:
            assert all(
                map(torch.equal, parameters(first), training.workers.model.state_dict().values())
            )
            rest = training.run()
    assert rest.metrics["epoch"].tolist() == [0, 1, 2, 3] and rest.outcome == "completed"
    assert np.array_equal(rest.loss[:3], first.loss) and np.isfinite(rest.loss).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "allreduce", "optimizer": "adam", "clip": 1.0},
        {"precision": "bfloat16", "alpha": "iid"},
        {"algorithm": "pga", "algorithm_options": {"period": 2}, "model": "cnn", "nesterov": True},
        {
            "algorithm": "pga",
            "algorithm_options": {"period": 2, "adaptive": True, "warmup": 3},
            "alpha": "iid",
        },
        {"algorithm": "osgp", "topology": "equitopo", "topology_options": {"kind": "OU"}},
        {
            "algorithm": "relay",
            "topology": "double_binary_trees",
            "optimizer": "adamw",
            "lr": 0.01,
            "augment": True,
        },
        {
            "algorithm": "qg",
            "topology": "ring",
            "topology_options": {"weights": "uniform"},
            "schedule": "goyal",
        },
    ],
    ids=lambda changes: "-".join(map(str, list(changes.values())[:2])),
)
def test_settings_work_together(net, changes):
    trained = fit(net=net, **{**QUICK, "epochs": 1, **changes})
    assert (
        np.isfinite(trained.loss).all()
        and trained.metrics["loss_mean"][-1] < trained.metrics["loss_mean"][0]
    )


def test_lost_messages_are_those_of_the_mixer(net):
    """Each step mixes with what has arrived, by draws of the seed; relayed sums lose it, too."""
    quick = {**QUICK, "epochs": 1, "algorithm": "relay", "topology": "chain"}
    whole, own, current = (
        fit(net=net, **quick, **more)
        for more in (
            {},
            {"lose": 1.0, "algorithm_options": {"missing": "own"}},
            {"lose": 0.5, "algorithm_options": {"missing": "current"}, "seed": 1},
        )
    )
    local = fit(net=net, **{**QUICK, "epochs": 1}, lose=1.0, fill="own", topology="chain")
    for alone, same in zip(parameters(own), parameters(local)):  # nobody hears anybody
        torch.testing.assert_close(alone, same)
    assert not torch.equal(parameters(whole)[0], parameters(current)[0])


def test_a_step_takes_the_rate_of_its_middle_and_clips_the_average(net):
    """With a warm-up of five epochs from 0, and decays; the averaged gradient is clipped, and not that of each worker."""
    settings = Settings(
        algorithm="allreduce",
        schedule="relaysgd",
        lr=0.4,
        momentum=0.0,
        nesterov=False,
        weight_decay=0.0,
        clip=0.01,
        batch=32,
        epochs=1,
    )
    rates, rows = [], []

    def note(step, steps, metrics):
        rates.append(training.optimizer.param_groups[0]["lr"])
        rows.append(training.workers.rows().astype(float))

    with Training(settings, net) as training:
        rows.append(training.workers.rows().astype(float))
        training.run(note)
    middles = (np.arange(training.epochs.steps) + 0.5) / training.epochs.length
    decay = 0.1 ** np.sum([middles >= 0.75, middles >= 0.9], axis=0)
    np.testing.assert_allclose(rates, 0.4 * middles / 5 * decay, rtol=1e-12)
    fastest = int(np.argmax(rates))
    moved = np.linalg.norm(rows[fastest + 1] - rows[fastest], axis=1)
    np.testing.assert_allclose(moved, rates[fastest] * settings.clip, rtol=1e-3)


def test_large_batches_of_all_workers_warm_up_to_the_rate_of_their_size(net):
    settings = Settings(**{**QUICK, "schedule": "goyal", "lr": 0.1, "epochs": 1})
    rates = []
    with Training(settings, net) as training:
        training.run(lambda *_: rates.append(training.optimizer.param_groups[0]["lr"]))
    middles = (np.arange(training.epochs.steps) + 0.5) / training.epochs.length
    scale = settings.batch * net.n / 256
    np.testing.assert_allclose(rates, 0.1 * (1 + middles / 5 * (scale - 1)), rtol=1e-12)


def test_clipping_is_per_worker(net):
    training = Training(Settings(**QUICK), net)
    training.workers.gradients()
    gradients = [p.grad.clone().view(net.m, -1) for p in training.workers.model.parameters()]
    norms = torch.cat(gradients, dim=1).norm(dim=1)
    for bound in (2 * float(norms.max()), float(norms.median()), float(norms.min()) / 2):
        training.workers.clip(bound)  # that of all, of some, and of none stays as it is
        after = torch.cat(
            [p.grad.view(net.m, -1) for p in training.workers.model.parameters()], dim=1
        ).norm(dim=1)
        assert torch.allclose(after, norms.clamp(max=bound))
    training.close()


def test_nested_states():
    state = {
        "a": [torch.ones(2, dtype=torch.bfloat16), (None, 0.1, True)],
        5: {"x/y": torch.zeros(())},
        "a.0": np.arange(3),
    }
    arrays = flat(state, "rank0.")
    again = nested(arrays, "rank0.")
    assert all("/" not in name and array.dtype.kind in "biuf" for name, array in arrays.items())
    assert torch.equal(again["a"][0], state["a"][0]) and again["a"][0].dtype == torch.bfloat16
    assert again["a"][1] == (None, 0.1, True)
    assert again[5]["x/y"].shape == () and again["a.0"].tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="a is of type set"):
        flat({"a": {1}})


WRONG = [
    (["--algorithm", "realy"], "--algorithm: unknown algorithm 'realy': did you mean relay?"),
    (["--model", "vg11"], "--model: unknown model 'vg11': did you mean vgg11?"),
    (["--data", "cifar"], "--data: unknown data 'cifar': did you mean cifar10?"),
    (["--topology", "rign"], "--topology: unknown topology 'rign': did you mean"),
    (
        ["--schedule", "cosin"],
        "--schedule: unknown learning-rate schedule 'cosin': did you mean cosine?",
    ),
    (
        ["--optimizer", "lbfgs"],
        "--optimizer: unknown optimizer 'lbfgs': expected one of adadelta, adafactor, adagrad, adam, adamax",
    ),
    (["--lr", "fast"], "--lr: expected a number > 0, got 'fast'"),
    (["--lr", "0"], "--lr: expected a number > 0, got '0'"),
    (["--alpha", "-1"], "--alpha: expected a number > 0 or iid, got '-1'"),
    (["--batch", "1.5"], "--batch: expected an integer > 0, got '1.5'"),
    (["--momentum", "1"], "--momentum: expected a number in [0, 1), got '1'"),
    (["--epochs", "nan"], "--epochs: expected an integer > 0"),
    (["--precision", "float16"], "--precision: expected float32 or bfloat16, got 'float16'"),
    (
        ["--optimizer", "adam", "--momentum", "0.5"],
        "--momentum 0.5: adam has no momentum: omit it: its options are betas, eps",
    ),
    (["--batch", "5000"], "--batch 5000, but worker"),
    (["--data", "mnist"], "data set mnist is read from files, but --path is not given"),
    (["--set", "algorithm.perod=3", "--algorithm", "pga"], "algorithm 'pga'"),
    (["--set", "model.size=3"], "model mlp has no option size"),
    (
        ["--set", "train.epoch=3"],
        "--set train.epoch: unknown key of [train] 'epoch': did you mean epochs?",
    ),
    (["--set", "train.lr=3"], "unknown key of [train] 'lr': did you mean optimizer.lr?"),
    (["--set", "data.data=mine.csv"], "unknown key of [data] 'data': did you mean data.name?"),
    (["--set", "lr=3"], "--set 'lr=3': expected table.key=value, such as optimizer.lr=0.05"),
    (
        ["--set", "optimizer.beta=3"],
        "optimizer.beta = 3: sgd has no option beta: expected one of dampening",
    ),
    (
        ["--optimizer", "adam", "--set", "optimizer.betas=3"],
        "optimizer.betas: expected two numbers in [0, 1), such as",
    ),
    (
        ["--optimizer", "adamw", "--set", "optimizer.eps=x"],
        "optimizer.eps: expected a number > 0, got 'x'",
    ),
    (["--set", "optimizer.maximize=3"], "optimizer.maximize: expected true or false, got 3"),
    (
        ["--nesterov", "--set", "optimizer.dampening=0.5"],
        "optimizer.dampening = 0.5: optimizer sgd: Nesterov momentum requires",
    ),
    (
        ["--set", "model.hidden=abc"],
        "model mlp: hidden is 'abc', expected a list of integers > 0, such as [32, 16]",
    ),
    (["--set", "model.hidden=3"], "model mlp: hidden is 3, expected a list of integers > 0"),
    (["--set", "model.hidden=[0]"], "model mlp: hidden is [0], expected a list of integers > 0"),
    (["--set", "model.seed=1"], "model mlp has no option seed, expected hidden"),
    (
        ["--model", "transformer", "--set", "model.heads=0"],
        "model transformer: heads is 0, expected an integer > 0",
    ),
    (
        ["--model", "vgg11", "--set", "model.dropout=x"],
        "model vgg11: dropout is 'x', expected a number in [0, 1)",
    ),
    (
        ["--algorithm", "pga", "--set", "algorithm.period=x"],
        "algorithm.period = 'x': algorithm 'pga': period is 'x', expected a whole number >= 1",
    ),
    (
        ["--algorithm", "choco", "--set", "algorithm.gamma=x"],
        "algorithm.gamma = 'x': compress: gamma is 'x', expected",
    ),
    (
        ["--algorithm", "hierarchical", "--set", "algorithm.machine_size=x"],
        "algorithm.machine_size is 'x', expected a divisor",
    ),
    (
        ["--topology", "exponential", "--set", "topology.base=x"],
        "topology.base = 'x': exponential: base is 'x', expected an integer >= 2",
    ),
    (
        ["--topology", "ring", "--set", "topology.n=5"],
        "topology.n = 5: ring has no option n: expected one of weights",
    ),
    (
        ["--topology", "ring", "--set", "topology.weights=3"],
        "topology.weights = 3: ring: the edge weight 3 leaves",
    ),
    (
        ["--algorithm", "allreduce", "--set", "topology.weights=uniform"],
        "has no option weights: expected no options",
    ),
    (["--lose", "2"], "--lose: expected a number in [0, 1], got '2'"),
    (["--set", "mixing.fill=own"], "mixing.fill = 'own' has no effect without mixing.lose"),
    (
        ["--algorithm", "allreduce", "--lose", "0.1"],
        "'allreduce' does not mix by W, so that --lose would have no effect",
    ),
    (["--loss", "0.1"], "expected a loss function, got '0.1': messages are lost with --lose 0.1"),
    (["--set", "mixing.loss=0.1"], "--set mixing.loss: mixing.loss is called mixing.lose"),
    (
        ["--algorithm", "relay", "--set", "algorithm.fill=own"],
        "its own options: relay, missing, overlap, share",
    ),
    (["--algoritm", "atc"], "unknown flag '--algoritm': did you mean --algorithm?"),
    (["--algorithm", "relay", "--topology", "ring", "--workers", "8"], "tree"),
    (["--algorithm", "allreduce", "--topology", "ring"], "omit it"),
    (["--resume", "none.h5"], "none.h5 does not exist"),
    (["--resume", "none.h5", "--workers", "4"], "none.h5 does not exist"),
    (
        ["--resume", __file__],
        "not an HDF5 file, expected a run file (of python -m mpidec.run or python -m mpidec.train)",
    ),
    (["--out", "none/train.h5"], "none"),
    (["--trace", "none/a.json"], "none/a.json"),
    (["none.toml"], "none.toml: cannot read"),
]


@pytest.mark.parametrize(
    "argv, text", WRONG, ids=[" ".join(map(os.path.basename, argv)) for argv, _ in WRONG]
)
def test_refused_in_one_line(argv, text, comm, shared_tmp, monkeypatch, capfd):
    monkeypatch.chdir(shared_tmp)
    assert main(["--epochs", "1", *argv] if "--epochs" not in argv else argv, comm) == 2
    said = capfd.readouterr().err.splitlines()
    assert (
        said == []
        if comm.rank
        else (len(said) == 1 and said[0].startswith("mpidec.train: error: ") and text in said[0])
    ), said


def test_ranks_without_workers_are_refused(comm, shared_tmp, monkeypatch, capfd):
    monkeypatch.chdir(shared_tmp)
    if comm.size > 1:
        assert main(["--workers", str(comm.size - 1)], comm) == 2
        said = capfd.readouterr().err
        assert (
            comm.rank
            or f"the job has {comm.size} ranks, expected at least one worker on each" in said
        )


def test_command(comm, shared_tmp, monkeypatch, capfd):
    monkeypatch.chdir(shared_tmp)
    n = str(comm.size + 1)
    assert (
        main(
            [
                "--workers",
                n,
                "--epochs",
                "1",
                "--every",
                "1",
                "--trace",
                "run.json",
                "--set",
                "model.hidden=[16]",
            ],
            comm,
        )
        == 0
    )
    out = capfd.readouterr().out
    assert comm.rank or (
        "accuracy" in out
        and f"{n} on {comm.size} rank" in out
        and "train.h5" in out
        and "hidden (16" not in out
    )
    assert comm.rank or os.path.getsize("run.json") > 100
    comm.Barrier()
    if comm.rank == 0:
        os.remove("run.json")  # a file that another file names is not written
    assert main(["--resume", "train.h5", "--epochs", "2", "--quiet"], comm) == 0
    assert comm.rank or not os.path.exists("run.json")
    assert capfd.readouterr().out == "" and mpidec.read("train.h5").metrics["epoch"].tolist() == [
        0,
        1,
        2,
    ]
    assert (
        main(["--resume", "train.h5"], comm) == 2
        and main(["--resume", "train.h5", "--lr", "1"], comm) == 2
    )
    said = capfd.readouterr().err
    assert comm.rank or (
        "already trained for 2 epochs" in said
        and "--lr: optimizer.lr is 0.1 in train.h5, not 1: a resumed training keeps its" in said
    )
    assert main(["--list"], comm) == 0 and main(["--help"], comm) == 0
    out = capfd.readouterr().out
    words = (
        "vgg11",
        "relay",
        "double_binary_trees",
        "fashion_mnist",
        "goyal",
        "--weight-decay",
        "FILE.npz",
        "FILE.py:NAME",
    )
    assert comm.rank or all(word in out for word in words)


MINE = """
import numpy as np, torch
from mpi4py import MPI
def blobs(seed=1):
    random, y = np.random.default_rng(seed), np.arange(300) % 3
    return random.normal(size=(300, 6)) + 4 * np.eye(3, 6)[y], y
def differs(): return blobs(MPI.COMM_WORLD.rank)
def raises(): return 1 / 0
def noise(): return np.random.default_rng(0).normal(size=(300, 6)), np.random.default_rng(1).integers(0, 3, 300)
class Net(torch.nn.Module):
    def __init__(self, shape, classes, width=16):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.LazyLinear(width), torch.nn.Tanh(), torch.nn.Linear(width, classes))
    def forward(self, x): return self.layers(x)
class Unbatched(Net):
    def forward(self, x): return self.layers(x) if x.sum().item() < 1e9 else x
def two(shape, classes): return Net(shape, 2)
def number(shape, classes, **options): return 3
def frozen(shape, classes): return torch.nn.Linear(shape[0], classes).requires_grad_(False)
"""


@pytest.fixture
def mine(comm, shared_tmp, monkeypatch):
    """The working folder of all ranks, with mine.py."""
    if comm.rank == 0:
        (shared_tmp / "mine.py").write_text(MINE)
        (shared_tmp / "other").mkdir()
        (shared_tmp / "mine.toml").write_text(
            '[data]\nname = "mine.py:blobs"\nalpha = "iid"\n'
            '[model]\nname = "mine.py:Net"\nwidth = 9\n'
        )
    comm.Barrier()
    monkeypatch.chdir(shared_tmp)
    return shared_tmp


def test_data_and_a_model_of_ones_own(mine, comm, monkeypatch, capfd):
    n, out = str(comm.size + 1), str(mine / "train.h5")
    monkeypatch.chdir(mine / "other")
    assert (
        main(["../mine.toml", "--workers", n, "--epochs", "2", "--batch", "8", "--out", out], comm)
        == 0
    )
    said = capfd.readouterr().out
    words = (
        "mine.py:blobs, split iid, 60 of 300 samples held out for testing",
        "mine.py:Net, width 9, 93 parameters",
    )
    assert comm.rank or (all(word in said for word in words) and str(mine / "mine.py") not in said)
    monkeypatch.chdir("/")
    assert main(["--resume", out, "--epochs", "3", "--quiet"], comm) == 0
    named = (
        f"names code that is run now: {mine / 'mine.py'}:blobs (data.name), {mine / 'mine.py'}:Net"
    )
    assert comm.rank or named in capfd.readouterr().err
    run = mpidec.read(out)
    assert run.metrics["epoch"][-1] == 3 and run.metrics["accuracy_worst"][-1] > 0.9
    assert f'name = "{mine / "mine.py"}:blobs"' in run.config and run.x.shape == (comm.size + 1, 93)
    code = (mine / "mine.py").read_text()
    said = resumed_with(mine, out, comm, capfd, code + "# other")
    assert comm.rank or f"{out}: mine.py has changed since the run began: restore it, or" in said
    if comm.rank == 0:  # as if made from other data
        with h5py.File(out, "a") as file:
            file.attrs["data_hash"] = "00000000"
    said = resumed_with(mine, out, comm, capfd, code)
    assert comm.rank or "mine.py:blobs has changed since the run began: 300 samples with" in said


def resumed_with(mine, out, comm, capfd, code):
    comm.Barrier()
    if comm.rank == 0:
        (mine / "mine.py").write_text(code)
    comm.Barrier()
    assert main(["--resume", out, "--epochs", "4", "--quiet"], comm) == 2
    return capfd.readouterr().err


def test_a_model_that_cannot_be_batched(mine, comm):
    with mpidec.Network(2 * comm.size, comm) as net:
        a, b = (
            fit(net=net, data="mine.py:blobs", model=f"mine.py:{name}", epochs=1, batch=8)
            for name in ("Net", "Unbatched")
        )
    assert all(torch.allclose(p, q, atol=1e-5) for p, q in zip(parameters(a), parameters(b)))


@pytest.mark.parametrize(
    "data, model, text",
    [
        ("raises", "Net", "mine.py:raises: line 8: ZeroDivisionError: division by zero"),
        ("blobs", "two", "the output is (2, 2), expected (2, 3): one number per sample and class"),
        ("blobs", "number", "TypeError: expected a torch.nn.Module, got 3"),
        ("blobs", "frozen", "it has no parameters to train"),
        (
            "blobs",
            "blobs",
            "mine.py:blobs cannot be used as a model: it is blobs(seed=1), expected a function (shape, classes)",
        ),
        ("blobs", "Nte", "mine.py has no Nte: did you mean Net"),
        (
            "blobs",
            "Net --set model.widht=3",
            "model.widht = 3: mine.py:Net has no option widht: did you mean width?",
        ),
        (
            "blobs",
            "Net --set model.width=x",
            "mine.py:Net for samples of the shape (6,), 3 classes, width = 'x': line 13: TypeError",
        ),
        (
            "blobs",
            "Net --augment true",
            "--augment true crops and mirrors images, got samples of the shape (6,)",
        ),
        ("blobs", "Net --path .", "data set mine.py:blobs is a file itself"),
    ],
)
def test_data_and_models_of_ones_own_are_refused_in_one_line(mine, comm, data, model, text, capfd):
    assert (
        main(
            ["--batch", "8", "--data", f"mine.py:{data}", "--model", *f"mine.py:{model}".split()],
            comm,
        )
        == 2
    )
    said = capfd.readouterr().err.splitlines()
    assert (
        said == []
        if comm.rank
        else (len(said) == 1 and said[0].startswith("mpidec.train: error: ") and text in said[0])
    ), said


def test_data_that_differs_between_ranks_is_refused(mine, comm, capfd):
    if comm.size > 1:
        assert main(["--data", "mine.py:differs"], comm) == 2
        assert (
            comm.rank
            or "data set mine.py:differs differs between the ranks" in capfd.readouterr().err
        )


def test_models_for_images_are_refused_for_vectors(mine, comm, capfd):
    assert main(["--data", "mine.py:blobs", "--model", "cnn", "--batch", "8"], comm) == 2
    assert (
        comm.rank
        or "model cnn takes images (channels, height, width), got samples of the shape (6,)"
        in capfd.readouterr().err
    )


@pytest.mark.serial
def test_divergence_is_reported(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["--lr", "1e30", "--workers", "3", "--epochs", "1", "--quiet"]) == 3
    assert (
        "diverged: worker" in capfd.readouterr().err
        and mpidec.read("train.h5").outcome == "diverged"
    )


def test_a_training_that_ends_worse_than_it_began_says_so(mine, comm, capfd):
    argv = ["--workers", str(comm.size), "--batch", "8", "--epochs", "1", "--alpha", "iid"]
    assert (
        main(
            [
                *argv,
                "--data",
                "mine.py:noise",
                "--lr",
                "100",
                "--clip",
                "1",
                "--schedule",
                "constant",
            ],
            comm,
        )
        == 0
    )
    said = capfd.readouterr()
    assert comm.rank or re.search(r"outcome +completed, but the test loss has grown\n", said.out), (
        said.out
    )
    warning = r"mpidec.train: warning: the mean test loss has grown from [\d.]+ to [\de.+]+: lower --lr 100\n"
    assert comm.rank or re.fullmatch(warning, said.err), said.err
    assert main([*argv, "--data", "mine.py:blobs", "--lr", "0.01", "--quiet"], comm) == 0
    name = "mpidec.train: train.h5 exists, the file is train-2.h5\n"
    assert capfd.readouterr() == ("", "" if comm.rank else name)


@pytest.mark.serial
def test_curves(tmp_path):
    pytest.importorskip("matplotlib")
    import mpidec.plot

    paths = [str(tmp_path / f"{name}.h5") for name in ("atc", "relay")]
    for path, algorithm in zip(paths, ("atc", "relay")):
        fit(workers=3, algorithm=algorithm, out=path, **QUICK)
    figure = mpidec.plot.figure(paths)
    told = [axes.get_ylabel() for axes in figure.axes if axes.get_visible()]
    assert told[:3] == ["accuracy, worst", "accuracy, mean", "accuracy, average model"]
    assert told[3].startswith("consensus") and told[4:] == ["test loss, mean"]
    assert [axes.get_xlabel() for axes in figure.axes][2:5] == ["epochs"] * 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "atc, One-peer exponential",
        "relay, Binary tree",
    ]


FAILING = """
import time, torch, mpidec.optim
model = torch.nn.Linear(3, 1)
torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
optimizer = mpidec.optim.Decentralized(torch.optim.SGD(model.parameters(), lr=0.1), model, "ring", "{algorithm}")
def batches():
    for k in range(10**6):
        if k == 20 and optimizer.averager.net.rank == 1:
            print("raised at", time.time(), flush=True)
            raise OSError("cannot read part-7.tar")
        yield torch.ones(4, 3)
for x in batches():
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.launch
@pytest.mark.parametrize("algorithm", first(["awc", "atc"]))
def test_a_rank_that_fails_to_load_its_data_ends_the_job(mpirun, tmp_path, algorithm):
    program = tmp_path / "program.py"
    program.write_text(FAILING.format(algorithm=algorithm))
    done = mpirun(2, [str(program)], timeout=50)
    ended = time.time()
    assert done.returncode != 0 and "[rank 1] OSError: cannot read part-7.tar" in done.stderr, done
    raised = float(re.search(r"raised at ([\d.]+)", done.stdout)[1])
    assert "in batches" in done.stderr and ended - raised < launch.patient(10), done


@pytest.mark.launch
def test_launched_command(mpirun, tmp_path):
    done = mpirun(2, ["-m", "mpidec", "train", "--epochs", "1"], timeout=50, cwd=tmp_path)
    assert done.returncode == 0 and "2 on 2 ranks" in done.stdout, done


@pytest.mark.serial
def test_a_damaged_checkpoint_is_refused_in_one_line(tmp_path):
    h5py = pytest.importorskip("h5py")
    small = {"model_options": {"hidden": [8]}, "batch": 128}
    settings = Settings(workers=2, epochs=1, out=str(tmp_path / "train.h5"), **small)
    fit(settings)
    for name in ("checkpoint/rank0.structure", "metrics/step"):
        path = tmp_path / "damaged.h5"
        path.write_bytes((tmp_path / "train.h5").read_bytes())
        with h5py.File(path, "r+") as file:
            del file[name]
        with pytest.raises(ValueError, match="damaged"):
            fit(dataclasses.replace(settings, out=str(path), epochs=2), resume=True)
