"""Settings of a training: what is trained, on which data, how, and by which algorithm; as flags,
as TOML, as keyword arguments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from operator import methodcaller
from typing import Any, Literal

from .. import optim, plugins, topology
from .._words import summary
from ..datasets import image_sets, is_folder, is_labelled
from ..exceptions import ConfigError
from ..experiment import (
    SchemaEntry,
    Setting,
    Value,
    metric_files,
    metrics_of,
    parse,
    schema,
    setting,
    to_toml,
)
from ..nn import models
from ..nn.internals import SCHEDULES
from ..optim.internals import Algorithm, Mixer
from ..registry import TOPOLOGIES
from ..topology import Schedule, Topology
from .components import CRITERIA, OPTIMIZERS, check_optimizer, default_rate
from .options import check_topology, named

# Two topologies, which divide the parameters.
TREES = "double_binary_trees"
# Components of the user's own by the key of the setting, beside metrics and loggers.
NAMED = ("data", "model", "criterion", "topology", "optimizer", "schedule", "log")
WITH_OPTIONS = ("model", "criterion", "algorithm", "topology", "optimizer")
SUFFIXES = (".py", ".npz", ".csv", ".tsv")  # of files of data
CLASSES = {"criterion": CRITERIA.own, "optimizer": OPTIMIZERS.own}
LOGS = {
    "csv": "a table of all records",
    "tensorboard": "a folder for TensorBoard",
    "FILE.py:NAME": "a function (step, numbers) of your own, called on rank 0",
}


def data_place(name: str, folder: str) -> str:
    """Return the name of a data set with the path of its file or folder."""
    place = os.path.abspath(os.path.join(folder, os.path.expanduser(name)))
    if name not in image_sets() and not is_labelled(name) and os.path.isdir(place):
        return place
    return place if is_folder(name) else plugins.located(name, folder, suffixes=SUFFIXES)


@dataclass(frozen=True)
class Settings:
    """Settings of a training.

    Parameters
    ----------
    data, path : str
        Name of the images, and the folder of their files; or a file, a folder, or ``FILE.py:NAME``,
        as in `mpidec.datasets.labelled.labelled`.
    size, label, standardize
        How own data are read, as in `mpidec.datasets.labelled.Reading`.
    alpha : float or "iid", optional
        Concentration of the Dirichlet split over the workers; by default 0.1, or "iid" where the
        targets are not classes.
    model, criterion, algorithm, topology, optimizer, schedule : str
        Names: see ``python -m mpidec.train --list``.  By default the topology of the algorithm.
        ``FILE.py:NAME`` is one of the user's own: a model is a function (shape, classes,
        **options) or a class of modules; a criterion is a function (outputs, targets, **options)
        that returns the mean loss of a batch, or a class of modules; an optimizer is a function
        (parameters, lr, **options) or a class of torch; a schedule is a function (epoch, epochs)
        that returns the factor of the learning rate.
    metrics : str, optional
        ``NAME=FILE.py:NAME,...``: functions (outputs, targets) of the whole test set that return a
        number.
    lr, momentum, nesterov, weight_decay
        Of the optimizer.  By default the learning rate is 0.1 for sgd, else that of torch,
        and the momentum 0.9 for sgd, or 0 for algorithms with a momentum of their own.
    clip : float, optional
        Largest norm of the gradient of a worker.
    accumulate : int
        Batches whose mean gradient is that of a step.
    lose : float, optional
        Probability with which each message is lost.
    fill : {"renormalize", "own", "zero"}, optional
        What takes the place of a lost row, as in `W.lossy`.
    workers : int, optional
        By default one per rank, or 16 in a single process.
    batch, epochs, every : int
        Samples per step of a worker; epochs; epochs between two evaluations.
    seed : int
    precision : {"float32", "bfloat16"}
        Of the forward pass; parameters and updates are in float32.
    device : {"cpu", "cuda"}
    buffers : {"local", "average"}
        Statistics of batch norm, as in `mpidec.optim.Decentralized`.
    augment : bool, optional
        Random crops and mirror images; by default for cifar10.
    checkpoint_minutes : float, optional
        Longest time between two checkpoints; by default there is one at each evaluation.
    log : {"csv", "tensorboard"} or ``FILE.py:NAME``, optional
        Where each record goes, too: a table or a folder beside `out`, or a function (step, numbers)
        on rank 0; `numbers` is a dict.
    out : str, optional
        HDF5 file.
    trace : str, optional
        Timeline for Perfetto.
    model_options, criterion_options, algorithm_options, topology_options, optimizer_options : dict
        Further arguments of the model, the criterion, the algorithm, the topology and the
        optimizer.

    Raises
    ------
    ConfigError
        A `ValueError`: an unknown name, or a value out of range.

    Examples
    --------
    >>> settings = Settings(algorithm="pga", algorithm_options={"period": 4}, lr=0.05)
    >>> Settings.load(read_toml(text=settings.to_toml())) == settings
    True
    """

    data: str = setting(
        "digits",
        key="data.name",
        metavar="D",
        help="data set: digits (default, built in), mnist, fashion_mnist, cifar10, or one of your "
        "own: a folder of images, FILE.npz, FILE.csv, FILE.py:NAME (see --list)",
        locate=data_place,
    )
    path: str | None = setting(
        None, key="data.path", metavar="FOLDER", help="folder with the files of the data set"
    )
    size: int | tuple[int, int] | None = setting(
        None,
        "> 0",
        key="data.size",
        metavar="PIXELS",
        help="scale and crop the images of a folder to this size: 64, or HEIGHT,WIDTH",
        expected="a number of pixels, or two: HEIGHT,WIDTH",
    )
    label: str | int | None = setting(None, key="data.label")
    standardize: bool = setting(False, key="data.standardize")
    alpha: float | Literal["iid"] | None = setting(
        None,
        "> 0",
        key="data.alpha",
        metavar="A",
        help="concentration of the Dirichlet split over the workers: the smaller, the fewer "
        "classes each "
        "worker has; or iid (default: 0.1, or iid for targets that are not classes)",
    )
    model: str = setting(
        "mlp",
        key="model.name",
        metavar="M",
        help="mlp (default), cnn, vgg11, resnet18, transformer, or one of your own: FILE.py:NAME "
        "(see --list)",
        locate=plugins.located,
    )
    criterion: str = setting(
        "cross_entropy",
        key="criterion.name",
        metavar="LOSS",
        help="loss function: cross_entropy (default), mse_loss, ... of torch, or one of your own: "
        "FILE.py:NAME (see --list)",
        locate=plugins.located,
        aliases=("--loss",),
    )
    metrics: str | None = setting(
        None,
        key="train.metrics",
        flag="metric",
        metavar="NAME=FILE.py:F",
        help="metric of your own: F(outputs, targets) returns a number for the test data; the flag "
        "may be repeated",
        repeat=True,
        locate=metric_files,
    )
    algorithm: str = setting(
        "atc",
        key="algorithm.name",
        metavar="A",
        help="atc (default), awc, relay, d2, allreduce, ...: see --list",
    )
    topology: str | None = setting(
        None,
        key="topology.name",
        metavar="T",
        help="graph: ring, exponential, ... (default: that of the algorithm)",
        locate=plugins.located,
    )
    optimizer: str = setting(
        "sgd",
        key="optimizer.name",
        metavar="O",
        help="sgd (default), adam, adamw, ... of torch, or one of your own: FILE.py:NAME",
        locate=plugins.located,
    )
    lr: float | None = setting(
        None,
        "> 0",
        key="optimizer.lr",
        metavar="LR",
        help="learning rate (default: 0.1 for sgd, else that of torch)",
    )
    schedule: str = setting(
        "cosine",
        key="optimizer.schedule",
        metavar="S",
        help="of the learning rate: cosine (default), constant, relaysgd, goyal, or one of your "
        "own: FILE.py:NAME",
        locate=plugins.located,
    )
    momentum: float | None = setting(
        None,
        "in [0, 1)",
        key="optimizer.momentum",
        metavar="M",
        help="of sgd (default: 0.9, or 0 for algorithms with their own)",
    )
    nesterov: bool = setting(False, key="optimizer.nesterov", help="Nesterov momentum")
    weight_decay: float = setting(
        0.0, ">= 0", key="optimizer.weight_decay", metavar="W", help="weight decay (default: 0)"
    )
    clip: float | None = setting(
        None,
        "> 0",
        key="optimizer.clip",
        metavar="C",
        help="largest norm of a worker's gradient (default: none)",
    )
    lose: float | None = setting(
        None,
        "in [0, 1]",
        key="mixing.lose",
        metavar="P",
        help="each message is lost with the probability P (default: none is)",
        argument="mixing",
    )
    fill: Literal["renormalize", "own", "zero"] | None = setting(None, key="mixing.fill")
    workers: int | None = setting(
        None,
        "> 0",
        key="train.workers",
        metavar="N",
        help="number of workers (default: one per rank, or 16 in a single process)",
    )
    batch: int = setting(
        16, "> 0", key="train.batch", metavar="B", help="samples per step of a worker (default: 16)"
    )
    accumulate: int = setting(
        1,
        "> 0",
        key="train.accumulate",
        metavar="N",
        help="batches whose mean gradient is that of a step (default: 1)",
    )
    epochs: int = setting(60, "> 0", key="train.epochs", metavar="E", help="epochs (default: 60)")
    every: int = setting(
        5, "> 0", key="train.every", metavar="E", help="epochs between two evaluations (default: 5)"
    )
    seed: int = setting(
        0, ">= 0", key="train.seed", metavar="S", help="seed of all random numbers (default: 0)"
    )
    precision: Literal["float32", "bfloat16"] = setting(
        "float32",
        key="train.precision",
        metavar="P",
        help="float32 (default), or bfloat16: autocast",
    )
    device: Literal["cpu", "cuda"] = setting(
        "cpu", key="train.device", metavar="D", help="cpu (default) or cuda"
    )
    buffers: Literal["local", "average"] = setting(
        "local",
        key="train.buffers",
        metavar="B",
        help="statistics of batch norm: local (default) or average",
    )
    augment: bool | None = setting(
        None,
        key="train.augment",
        metavar="BOOL",
        help="random crops and mirror images (default: true for cifar10)",
    )
    checkpoint_minutes: float | None = setting(
        None,
        "> 0",
        key="train.checkpoint_minutes",
        metavar="M",
        help="longest time between two checkpoints (default: one at each evaluation)",
    )
    log: str | None = setting(
        None,
        key="train.log",
        metavar="LOG",
        help="write each record also to: csv or tensorboard, beside the output file, or "
        "FILE.py:NAME, a function (step, numbers)",
        locate=plugins.located,
    )
    out: str | None = setting(
        None,
        key="train.out",
        metavar="FILE",
        help="output file (default: train.h5, or train-2.h5, ... if it exists)",
    )
    trace: str | None = setting(
        None,
        key="train.trace",
        metavar="FILE",
        help="timeline of all ranks, for Perfetto: run.json",
    )
    model_options: Mapping[str, Any] = field(default_factory=dict)
    criterion_options: Mapping[str, Any] = field(default_factory=dict)
    algorithm_options: Mapping[str, Any] = field(default_factory=dict)
    topology_options: Mapping[str, Any] = field(default_factory=dict)
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in own().values():
            value = vars(self)[each.name]
            checked = _checked(each, Setting(each.key, value, each.name, False, folder=os.curdir))
            object.__setattr__(self, each.name, checked)
        if self.fill is not None and self.lose is None:
            raise ConfigError(f"mixing.fill = {self.fill!r} has no effect without mixing.lose")
        self.own_metrics()
        if self.optimizer in OPTIMIZERS.own:  # one of the user's own is loaded later
            self.check_optimizer()
        method(self)

    def check_optimizer(self) -> None:
        """Refuse settings that the optimizer does not have."""
        given = {name: vars(self)[name] for name in ("momentum", "nesterov", "weight_decay")}
        check_optimizer(self.optimizer, given, self.optimizer_options)

    def own_metrics(self) -> dict[str, str]:
        """Return the user's own metrics: ``FILE.py:F`` or ``MODULE:F`` by name.

        Raises
        ------
        ConfigError
            The text is not of the form ``NAME=FILE.py:F,...``, or a name is given twice.
        """
        try:
            found = metrics_of(self.metrics)
            if wrong := [name for name in found if name in TAKEN or not name.isidentifier()]:
                raise ValueError(f"{wrong[0]} is not available as a name: choose another one")
        except ValueError as error:
            raise ConfigError(f"metrics={self.metrics!r}: {error}") from None
        return found

    def sources(self) -> dict[str, str]:
        """Return the code of the user's own that is run, by key."""
        entries = {each.name: key for key, each in own().items()}
        found = {entries[name]: vars(self)[name] or "" for name in NAMED}
        found |= {f"train.metrics.{name}": place for name, place in self.own_metrics().items()}
        return {key: name for key, name in found.items() if plugins.is_plugin(name)}

    def mixing(self) -> Callable[[Mixer], Mixer] | None:
        """Return the function that turns the topology's mixer into that of the training."""
        if not self.lose:
            return None
        return methodcaller("lossy", self.lose, seed=self.seed, fill=self.fill or "renormalize")

    def complete(self, n: int, classes: bool = True) -> Settings:
        """Return the settings of n workers, with the defaults that depend on others, and on
        whether the targets are `classes`.
        """
        self.check_optimizer()
        algorithm = method(self)
        momentum = 0.0 if algorithm.method.own_momentum else 0.9
        graph = None if algorithm.method.averages_gradients else graph_name(self)
        stated = {"local_steps": algorithm.every} if algorithm.every > 1 else {}
        return replace(
            self,
            workers=n,
            alpha=(0.1 if classes else "iid") if self.alpha is None else self.alpha,
            lr=default_rate(self.optimizer) if self.lr is None else self.lr,
            topology=self.topology or graph,
            algorithm_options={**stated, **self.algorithm_options},
            momentum=momentum
            if self.optimizer == "sgd" and self.momentum is None
            else self.momentum,
        )

    @classmethod
    def load(cls, settings: Iterable[Setting]) -> Settings:
        """Return the settings given as ``table.key = value`` in increasing order of precedence.

        Raises
        ------
        ConfigError
            An unknown key, or a bad value; the message names its origin.
        """
        known = own()
        given: dict[str, Any] = {}
        for each in settings:
            table, _, key = each.key.partition(".")
            if each.key in known:
                given[known[each.key].name] = _checked(known[each.key], each)
            elif table in WITH_OPTIONS:
                value = parse(str(each.value)) if each.text else each.value
                given.setdefault(f"{table}_options", {})[key] = value
            else:
                keys = [name.partition(".")[2] for name in known if name.startswith(f"{table}.")]
                schema.check_name(f"key of [{table}]", key, keys, each.origin, known)
        return cls(**given)

    def to_toml(self) -> str:
        """Return the settings as TOML text."""
        tables: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
        for each in own().values():
            tables[each.table][each.key.partition(".")[2]] = vars(self)[each.name]
        for table in WITH_OPTIONS:
            tables[table] |= dict(sorted(vars(self)[f"{table}_options"].items()))
        return to_toml(tables)


FREE = {
    *(f"train.{name}" for name in ("epochs", "every", "device", "out", "trace", "log")),
    *("train.checkpoint_minutes", "data.path"),
}
"""Keys of settings that a resumed training may change."""
TAKEN = ("accuracy", "loss")
"""Names that metrics of the user's own cannot have."""


def shaping(text: str) -> dict[str, object]:
    """Return the settings that determine a training's results, by key, from their TOML text; files
    by name, without their folder.

    Examples
    --------
    >>> found = shaping('optimizer.lr = 0.2\\nmodel.name = "here/mine.py:Net"')
    >>> found["optimizer.lr"], found["optimizer.clip"], found["model.name"]
    (0.2, None, 'mine.py:Net')
    """
    defaults = Settings()
    found: dict[str, object] = {key: vars(defaults)[each.name] for key, each in own().items()}
    found |= {each.key: each.value for each in read_toml(text=text)}
    return {
        key: re.sub(r"[^=,]*/", "", value) if isinstance(value, str) else value
        for key, value in found.items()
        if key not in FREE
    }


@cache
def own() -> dict[str, SchemaEntry]:
    """Return the declarations of the fields of `Settings` that are keys and flags, by key."""
    return schema.entries(Settings)


TABLES = tuple(dict.fromkeys(each.table for each in own().values()))
read_toml = partial(schema.read_toml, tables=TABLES, keys=own())
parse_set = partial(schema.parse_set, tables=TABLES, example="optimizer.lr=0.05")


def names(setting: str) -> dict[str, str]:
    """Return the names that a setting can have, with a line each; empty for settings that are no
    names.
    """
    if setting == "topology":
        found = TOPOLOGIES.described(summary)
        return {**found, TREES: "two binary trees, each of which mixes half of the parameters"}
    tables = {
        "data": lambda: {
            **image_sets(),
            "FOLDER": "images, in a folder for each class; or in train/ and test/ of such folders",
            "FILE.csv": "a table, with classes or numbers in its last column (data.standardize scales the others)",
            "FILE.npz": "arrays x_train, y_train, x_test, y_test of your own",
            "FILE.py:NAME": "a function of your own that returns these arrays",
        },
        "model": lambda: {
            **models.names(),
            "FILE.py:NAME": "a function (shape, classes, **options), or a torch.nn.Module, of your "
            "own",
        },
        "criterion": lambda: {
            **{name: made.__name__ for name, made in CRITERIA.own.items()},
            "FILE.py:NAME": "a function (outputs, targets, **options) that returns the mean loss, "
            "or a torch.nn.Module, of your own",
        },
        "algorithm": optim.names,
        "schedule": lambda: {
            **SCHEDULES,
            "FILE.py:NAME": "a function (epoch, epochs) of your own that returns a factor",
        },
        "optimizer": lambda: {
            **{name: summary(made) for name, made in OPTIMIZERS.own.items()},
            "FILE.py:NAME": "a function (parameters, lr, **options), or a torch.optim.Optimizer, "
            "of your own",
        },
        "log": LOGS.copy,
    }
    return tables[setting]() if setting in tables else {}


def method(settings: Settings) -> Algorithm:
    """Return the algorithm of the settings.

    Raises
    ------
    ValueError
        For an option that it does not have, or an impossible value.
    """
    with named("algorithm", settings.algorithm_options):
        return optim.algorithm(settings.algorithm, **settings.algorithm_options)


def graph_name(settings: Settings) -> str:
    """Name of the topology."""
    return settings.topology or method(settings).graph


def graph(settings: Settings, n: int) -> Topology | Schedule | list[Topology] | None:
    """Return the topology of n workers, or several of them; None where the algorithm needs none.

    Raises
    ------
    ValueError, TypeError
        Of the function that makes it.
    """
    if settings.algorithm == "allreduce":
        if settings.topology is not None:
            raise ConfigError(
                f"topology {settings.topology}: allreduce averages the gradients of all workers "
                "and has none: "
                "omit it"
            )
        check_topology("allreduce, which has no topology,", None, settings.topology_options)
        return None
    if settings.algorithm == "hierarchical":
        size = settings.algorithm_options.get("machine_size", 2)
        if not isinstance(size, int) or size < 1 or n % size:
            raise ConfigError(
                f"algorithm.machine_size is {size!r}, expected a divisor of the number of workers "
                f"{n}"
            )
        n //= size
    name = graph_name(settings)
    make = topology.double_binary_trees if name == TREES else TOPOLOGIES[name]
    check_topology(name, make, settings.topology_options)
    with named("topology", settings.topology_options):
        made = make(n, **settings.topology_options) if callable(make) else make
    return list(made) if isinstance(made, tuple) else made


def _checked(each: SchemaEntry, setting: Setting) -> Value:
    """Return the value of a setting, converted to its type; names are looked up."""
    value = each.convert(setting)
    known = names(each.name)
    if known and isinstance(value, str):
        is_own = is_labelled if each.name == "data" else plugins.is_plugin
        if not (each.locate and is_own(value)):
            what = "learning-rate schedule" if each.name == "schedule" else each.name
            things = CLASSES.get(each.name, dict.fromkeys(known))
            try:
                value = plugins.canonical(value, things) or value
            except ValueError as error:
                raise ConfigError(f"{setting.origin}: {error}") from None
            if each.name == "criterion" and re.fullmatch(r"[\d.]+", value):
                raise ConfigError(
                    f"{setting.origin}: expected a loss function, got {value!r}: messages are lost "
                    f"with lose={value}"
                )
            schema.check_name(what, value, known, setting.origin)
    return value
