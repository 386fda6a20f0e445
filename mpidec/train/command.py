"""Command ``python -m mpidec.train``."""

from __future__ import annotations

import argparse
import errno
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..cli import (
    DISK,
    EXPERIMENT,
    Command,
    Flag,
    Interrupts,
    Status,
    aligned,
    announce_code,
    facts,
    file_error,
    file_flags,
    free_name,
    options,
    plural,
    progress,
    quantity,
    refuse_survival,
    resume_command,
    say,
    set_eviction,
    survival_flags,
)
from ..comm.mixing import Network
from ..comm.mixing.internals import lost_networks
from ..comm.runtime import MPI, REFUSALS, Communicator, end_job, on_those_left
from ..exceptions import ConfigError, InputError
from ..experiment import Setting, schema, stragglers, timeline_of, traced
from ..plugins import short
from ..record import read as read_run

if TYPE_CHECKING:
    from .loop import Trained, Training
    from .settings import Settings

T = TypeVar("T")
# Seconds after which other ranks than 0 end the job.
LATER = 0.5
# Settings that may be given with --resume.
CHANGEABLE = ("train.epochs", "train.trace", "train.checkpoint_minutes", "train.log")
# A final test loss of more times the first one is reported.
WORSE = 1.1
EPILOG = """\
examples:
  python -m mpidec.train                                        16 workers in one process: digits, mlp, atc
  mpirun -n 4 python -m mpidec.train                            one worker per rank
  mpirun -n 4 python -m mpidec.train --workers 16 --algorithm relay --topology chain --alpha 0.01
  python -m mpidec.train --data cifar10 --path cifar-10-batches-bin --model vgg11 --schedule relaysgd --epochs 200
  python -m mpidec.train --data mine.npz --model mine.py:Net --set model.width=32                 data and a model of your own
  python -m mpidec.train --data mine.csv --criterion mse_loss --metric r2=mine.py:r2              regression
  python -m mpidec.train --data pets/ --size 64 --model resnet18 --optimizer adamw                a folder of images
  python -m mpidec.train --algorithm pga --set algorithm.period=4 --set model.hidden=[256,64]
  mpirun -n 4 python -m mpidec.train --resume train.h5          continue after the last evaluation
  python -m mpidec.plot train.h5 -o curves.png                  accuracy and loss against epochs

tables of an experiment file, and of --set (flags override the file, and --set overrides flags):
  [data]       name, path, alpha; size, label = "COLUMN", standardize = true
  [model]      name; hidden, channels, dropout, width, ...
  [criterion]  name; label_smoothing, weight = [1, 2], delta, ...
  [algorithm]  name; its options: period of pga, momentum of qg, relay, missing and overlap of
               relay, codec of choco, ...
  [topology]   name; weights, ...
  [mixing]     lose; fill = "renormalize" | "own" | "zero"
  [optimizer]  name, lr, schedule, momentum, nesterov, weight_decay, clip; betas, ...
  [train]      workers, batch, accumulate, epochs, every, metrics, seed, precision, device, buffers,
               augment, checkpoint_minutes, log, out, trace
The attribute "config" of every train.h5 contains the complete settings in this form.

PyTorch takes as many threads as there are cores for each rank of a node, one for models of up to
80,000 parameters, or OMP_NUM_THREADS.

exit status: 0 completed; 1 error in the program or on the disk; 2 error in the input; 3 diverged
(several ranks: 1); 130 interrupted (the file is complete, and --resume continues).  Ctrl-C, SIGTERM,
SIGHUP and SIGUSR1 (which batch systems send before the time limit) interrupt a training."""


def flags() -> list[Flag]:
    """Return the arguments.

    Raises
    ------
    ImportError
        Without PyTorch.
    """
    from .settings import own

    names = "data sets, models, criteria, algorithms, topologies, optimizers and schedules"
    return [
        EXPERIMENT,
        *schema.flags(own().values()),
        *file_flags("training", "train.h5", "epochs", names),
        *survival_flags("on those that are left, without the workers there"),
    ]


def listing() -> str:
    """Return all names with a line each."""
    from .settings import names

    titles = {
        "data": "data sets",
        "model": "models",
        "criterion": "criteria",
        "algorithm": "algorithms",
        "topology": "topologies",
        "optimizer": "optimizers",
        "schedule": "learning-rate schedules",
        "log": "loggers",
    }
    tables = {title: names(setting) for setting, title in titles.items()}
    return "\n\n".join(
        "\n".join([f"{title}:", *(f"  {line}" for line in aligned(list(table.items()), "<<"))])
        for title, table in tables.items()
    )


def prepare(args: argparse.Namespace, ranks: int) -> tuple[Settings, argparse.Namespace] | str:
    """Return the settings and the arguments, or a text to print.

    Raises
    ------
    ConfigError
        If an argument is invalid.
    """
    from .settings import Settings, own, parse_set, read_toml

    if args.list:
        return listing()
    refuse_survival(args, ranks)
    given = [*schema.flag_settings(args, own().values()), *map(parse_set, args.set)]
    if args.resume is not None:
        for other in filter(None, [args.experiment, "--force" * args.force]):
            raise ConfigError(f"--resume continues the training in {args.resume}: omit {other}")
        return _resumed(args.resume, given), args
    file = read_toml(args.experiment) if args.experiment else []
    settings = Settings.load([*file, *given])
    timeline_of(settings.trace)
    out = settings.out or "train.h5"
    if not args.force:
        chosen = any(each.key == "train.out" for each in given)
        out = free_name("train", out, chosen, args.quiet)
    return replace(settings, out=out), args


def _resumed(path: str, flags: Sequence[Setting]) -> Settings:
    """Return the settings in the file of a training, with the changes given by flags."""
    from .settings import Settings, read_toml

    run = read_run(path)
    if "loss_consensus" not in run.metrics:
        raise ConfigError(
            f"{path} is not the file of a training: continue it with python -m mpidec.run --resume "
            f"{shlex.quote(path)}"
        )
    own = read_toml(path, text=run.config)
    known = {each.key: each.value for each in own}
    for flag in flags:
        if flag.key not in CHANGEABLE:
            raise ConfigError(
                f"{flag.origin}: {flag.key} is {known.get(flag.key, 'not set')} in {path}, not "
                f"{flag.value}: a resumed "
                f"training keeps its settings, and only {', '.join(map(flag_of, CHANGEABLE))} can "
                "be changed"
            )
    settings = Settings.load([*own, *flags])
    announce_code("train", path, settings.sources())
    done = float(run.metrics["epoch"][-1]) if len(run.metrics["epoch"]) else 0.0
    if run.outcome == "completed" and done >= settings.epochs:
        raise ConfigError(
            f"{path} has already trained for {done:g} epochs: request more with --epochs"
        )
    given = [str(flag.value) for flag in flags if flag.key == "train.trace"]
    # The file may be somebody else's: it names no file to write.
    return replace(settings, out=path, trace=given[-1] if given else None)


def flag_of(key: str) -> str:
    """Return the flag of a key."""
    return f"--{key.partition('.')[2].replace('_', '-')}"


def execute(request: tuple[Settings, argparse.Namespace], comm: MPI.Intracomm) -> int:
    """Train on all ranks of `comm`, and return the exit status."""
    from .loop import Training, workers

    settings, args = request

    def ready(comm: Communicator, lost: Callable[[], str]) -> tuple[Network, Training]:
        net = Network(workers(settings, comm), comm, timeline=timeline_of(settings.trace))
        resume = args.resume is not None
        return net, Training(settings, net, resume, survive=args.survive, lost=lost())

    try:
        (net, training), comm = on_those_left(ready, comm, args.survive, lost_networks)
    except REFUSALS as error:  # raised on all ranks
        full = isinstance(error, OSError) and error.errno in DISK
        raise InputError(
            str(error) or type(error).__name__, Status.FAILED if full else Status.INPUT
        ) from error
    quiet = args.quiet or comm.rank > 0
    shown = progress.progress("none" if quiet else "auto", line)
    try:
        trained = training.run(None if quiet else shown)
    except ConfigError as error:  # of the user's code, on all ranks
        raise InputError(str(error)) from error
    except OSError as error:  # of the file, on all ranks
        raise file_error(error, failures=(*DISK, errno.ENOENT)) from error
    except FloatingPointError as error:
        # The other ranks wait for rows of this one.
        if comm.size > 1:
            # Several may diverge in one step: one line.
            time.sleep(LATER * (comm.rank > 0))
            say("train", worded(f"diverged: {error}"))
            end_job(comm, Status.DIVERGED)
            return Status.DIVERGED
        raise InputError(f"diverged: {error}", Status.DIVERGED) from error
    finally:
        shown.close()
    training.close()
    waited = traced(net, settings.trace)
    if net.rank == 0:
        late = stragglers(waited, args.trace) if waited else ""
        _tell(training, trained, args.quiet, late)
    net.close()
    return Status.of(trained.outcome)


def _tell(training: Training, trained: Trained, quiet: bool, late: str) -> None:
    """Print how a training has ended, and unless `quiet` its table and who was `late`."""
    ranks, made = training.net.size, training.workers
    if trained.outcome == "interrupted":
        again = resume_command("train", trained.settings.out or "", ranks)
        step = trained.metrics["step"][-1]
        say("train", f"interrupted after step {step}: continue with {again}")
    if not quiet:
        print(summary(trained, made.size, ranks, made.note, training.lost), flush=True)
    if late and not quiet:
        print(late, flush=True)
    if (complaint := worse(trained)) is not None:
        say("train", f"warning: {complaint}")


def line(metrics: Mapping[str, Any]) -> str:
    """Return the metrics of an evaluation, and the training since then, as one line."""
    what = "accuracy" if "accuracy_worst" in metrics else "loss"
    return (
        f"epoch {metrics['epoch']:g}  {what} {metrics[f'{what}_worst']:.4g} worst, "
        f"{metrics[f'{what}_mean']:.4g} mean  train loss {metrics['train_loss']:.4g}  "
        f"lr {metrics['lr']:.2g}"
    )


def worded(text: str) -> str:
    """Return a message in the words of the command line.

    Examples
    --------
    >>> worded('algorithm="push_sum" takes weights="push": lower lr=0.1')
    '--algorithm push_sum takes --set topology.weights=push: lower --lr 0.1'
    """
    from .settings import own

    text = re.sub(r" \(--set problem\.\w+=[^)]*\)", "", text).replace("problem.label", "data.label")
    text = text.replace("mpidec run --list", "mpidec train --list")
    keys = {"weights": "topology.weights", "label": "data.label", "standardize": "data.standardize"}
    return schema.in_flags(text, own().values(), keys)


def worse(trained: Trained) -> str | None:
    """Return the complaint about a training that ends with a larger test loss than it began
    with, or None.
    """
    loss, average = trained.metrics["loss_mean"], trained.metrics["loss_consensus"]
    if min(loss[-1], average[-1]) <= WORSE * loss[0]:
        return None
    clip = ", or clip the gradients (--clip 1)" if trained.settings.clip is None else ""
    return (
        f"the mean test loss has grown from {loss[0]:.3g} to {loss[-1]:.3g}: lower --lr "
        f"{trained.settings.lr:g}{clip}"
    )


def name_of(name: str) -> str:
    """Return a name without the folder of the user's file."""
    return os.path.basename(short(name))


def summary(trained: Trained, size: int, ranks: int, note: str = "", lost: str = "") -> str:
    """Return the table printed at the end of a training; `note` is one on the data, and `lost` says
    who has died, a line for each time.
    """
    s, last = trained.settings, {name: values[-1] for name, values in trained.metrics.items()}
    rows = {
        "data": f"{name_of(s.data)}, split {'iid' if s.alpha == 'iid' else f'Dirichlet({s.alpha:g})'}{f', {note}' * bool(note)}",
        "model": f"{name_of(s.model)}{options(s.model_options)}, {size:,} parameters",
        "criterion": f"{name_of(s.criterion)}{options(s.criterion_options)}",
        "workers": f"{s.workers} on {plural(ranks, 'rank')}",
        **({"lost": "; ".join(lost.splitlines())} if lost else {}),
        "algorithm": f"{s.algorithm}{options(s.algorithm_options)}",
        **(
            {
                "topology": f"{name_of(s.topology)}{options(s.topology_options)}"
                + (f", {100 * s.lose:.3g} % of the messages are lost" if s.lose else "")
            }
            if s.topology
            else {}
        ),
        "optimizer": f"{name_of(s.optimizer)}, lr {s.lr:g} {name_of(s.schedule)}"
        + (f", {'Nesterov ' * s.nesterov}momentum {s.momentum:g}" if s.momentum else "")
        + (f", weight decay {s.weight_decay:g}" if s.weight_decay else "")
        + (f", clip {s.clip:g}" if s.clip else "")
        + options(s.optimizer_options),
        "epochs": f"{last['epoch']:g} of {s.epochs}, {last['step']} steps, batch {s.batch}"
        + (f" x {s.accumulate}" if s.accumulate > 1 else ""),
        "outcome": f"{trained.outcome}{', but the test loss has grown' * (worse(trained) is not None)}",
        **{name: _scores(trained, name) for name in trained.workers},
        "training": f"loss {last['train_loss']:.4g}, lr {last['lr']:.3g}",
        "consensus": f"{last['consensus']:.4g}",
        "time": f"{last['time']:.3g} s, {quantity(last['samples_per_second'], '')}samples/s",
        "sent": f"{quantity(last['bytes'] / s.workers, 'B')} per worker",
        "file": str(s.out),
    }
    return facts(rows)


def _scores(trained: Trained, name: str) -> str:
    """Return a result on the test set: of the worst worker where it is known which one that is."""
    last = {key: values[-1] for key, values in trained.metrics.items()}
    text = f"{last[f'{name}_mean']:.4g} mean, {last[f'{name}_consensus']:.4g} of the average"
    if f"{name}_worst" not in last:
        return text
    each = trained.workers[name][-1]
    worst = int(np.nanargmin(each) if name == "accuracy" else np.nanargmax(each))
    return f"{last[f'{name}_worst']:.4g} worst (worker {worst}), {text}"


TRAIN = Command(
    name="train",
    description="Train a network with decentralized workers, and write the curves to an HDF5 file.",
    epilog=EPILOG,
    flags=flags,
    prepare=prepare,
    execute=execute,
    interrupts=Interrupts.DEFERRED,
    before_mpi=set_eviction,
    survives=lambda args: bool(args.survive),
    worded=worded,
)
main = TRAIN.main
