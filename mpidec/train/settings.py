"""Settings of a training: what is trained, on which data, how, and by which algorithm; as flags, as TOML, as keyword arguments."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Literal

from .. import optim, topology
from ..datasets.images import image_sets
from ..datasets.labelled import is_labelled, located
from ..experiment import values
from ..experiment.settings import ConfigError, Setting, parsed
from ..nn import models
from ..nn.schedules import SCHEDULES
from ..optim.algorithms import Algorithm
from ..plugins import is_plugin, nearest
from ..registry import topologies
from .options import check_optimizer, check_topology, named

TREES = "double_binary_trees"  # two topologies, which divide the parameters
OPTIMIZERS = {
    "sgd": "stochastic gradient descent, with momentum",
    "adam": "Adam",
    "adamw": "Adam with decoupled weight decay",
}
RATES = {"sgd": 0.1, "adam": 1e-3, "adamw": 1e-3}
TABLES = ("data", "model", "algorithm", "topology", "optimizer", "train")
RANGES: dict[str, Callable[[float], bool]] = {
    "": lambda x: True,
    "> 0": lambda x: x > 0,
    ">= 0": lambda x: x >= 0,
    "in [0, 1)": lambda x: 0 <= x < 1,
}
LARGEST = 2**32
OF_FILES = ("data", "model", "topology")  # settings that can name a file of the user's own
WITH_OPTIONS = ("model", "algorithm", "topology", "optimizer")


def _setting(default: Any, key: str, metavar: str, help: str, range: str = "") -> Any:
    return field(
        default=default, metadata={"key": key, "metavar": metavar, "help": help, "range": range}
    )


def _options(table: str) -> Any:
    return field(default_factory=dict, metadata={"options": table})


@dataclass(frozen=True)
class Settings:
    """Settings of a training.

    Parameters
    ----------
    data, path : str
        Name of the images, and the folder of their files; or ``FILE.npz`` or ``FILE.py:NAME``, as in
        `mpidec.datasets.labelled.labelled`.
    alpha : float or "iid"
        Concentration of the Dirichlet split over the workers.
    model, algorithm, topology, optimizer, schedule : str
        Names: see ``python -m mpidec.train --list``.  By default the topology of the algorithm.  ``FILE.py:NAME`` is a model of
        the user's own, a function (shape, classes, **options) or a class of modules, or a topology.
    lr, momentum, nesterov, weight_decay
        Of the optimizer.  By default the learning rate is 0.1 for sgd and 0.001 for adam and adamw, and the momentum 0.9, or 0 for
        algorithms with a momentum of their own.
    clip : float, optional
        Largest norm of the gradient of a worker.
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
    out : str, optional
        HDF5 file.
    trace : str, optional
        Timeline for Perfetto.
    model_options, algorithm_options, topology_options, optimizer_options : dict
        Further arguments of the model, the algorithm, the topology and the optimizer.

    Raises
    ------
    ConfigError
        A `ValueError`: an unknown name, or a value out of range.

    Examples
    --------
    >>> settings = Settings(algorithm="pga", algorithm_options={"period": 4}, lr=0.05)
    >>> Settings.load(read(settings.to_toml())) == settings
    True
    """

    data: str = _setting(
        "digits",
        "data.name",
        "D",
        "data set: digits (default, built in), mnist, fashion_mnist, cifar10, or "
        "one of your own: FILE.npz, FILE.py:NAME (see --list)",
    )
    path: str | None = _setting(
        None, "data.path", "FOLDER", "folder with the files of the data set"
    )
    alpha: float | Literal["iid"] = _setting(
        0.1,
        "data.alpha",
        "A",
        "concentration of the Dirichlet split over the workers: the "
        "smaller, the fewer classes each worker has; or iid (default: 0.1)",
        "> 0",
    )
    model: str = _setting(
        "mlp",
        "model.name",
        "M",
        "mlp (default), cnn, vgg11, resnet18, transformer, or one of your own: "
        "FILE.py:NAME (see --list)",
    )
    algorithm: str = _setting(
        "atc", "algorithm.name", "A", "atc (default), awc, relay, d2, allreduce, ...: see --list"
    )
    topology: str | None = _setting(
        None, "topology.name", "T", "graph: ring, exponential, ... (default: that of the algorithm)"
    )
    optimizer: str = _setting("sgd", "optimizer.name", "O", "sgd (default), adam, adamw")
    lr: float | None = _setting(
        None, "optimizer.lr", "LR", "learning rate (default: 0.1 for sgd, else 0.001)", "> 0"
    )
    schedule: str = _setting(
        "cosine",
        "optimizer.schedule",
        "S",
        "of the learning rate: cosine (default), constant, relaysgd, goyal",
    )
    momentum: float | None = _setting(
        None,
        "optimizer.momentum",
        "M",
        "of sgd (default: 0.9, or 0 for algorithms with their own)",
        "in [0, 1)",
    )
    nesterov: bool = _setting(False, "optimizer.nesterov", "", "Nesterov momentum")
    weight_decay: float = _setting(
        0.0, "optimizer.weight_decay", "W", "weight decay (default: 0)", ">= 0"
    )
    clip: float | None = _setting(
        None, "optimizer.clip", "C", "largest norm of a worker's gradient (default: none)", "> 0"
    )
    workers: int | None = _setting(
        None,
        "train.workers",
        "N",
        "number of workers (default: one per rank, or 16 in a single process)",
        "> 0",
    )
    batch: int = _setting(
        16, "train.batch", "B", "samples per step of a worker (default: 16)", "> 0"
    )
    epochs: int = _setting(60, "train.epochs", "E", "epochs (default: 60)", "> 0")
    every: int = _setting(
        5, "train.every", "E", "epochs between two evaluations (default: 5)", "> 0"
    )
    seed: int = _setting(0, "train.seed", "S", "seed of all random numbers (default: 0)", ">= 0")
    precision: Literal["float32", "bfloat16"] = _setting(
        "float32", "train.precision", "P", "float32 (default), or bfloat16: autocast"
    )
    device: Literal["cpu", "cuda"] = _setting("cpu", "train.device", "D", "cpu (default) or cuda")
    buffers: Literal["local", "average"] = _setting(
        "local", "train.buffers", "B", "statistics of batch norm: local (default) or average"
    )
    augment: bool | None = _setting(
        None, "train.augment", "BOOL", "random crops and mirror images (default: true for cifar10)"
    )
    out: str | None = _setting(
        None,
        "train.out",
        "FILE",
        "output file (default: train.h5, or train-2.h5, ... if it exists)",
    )
    trace: str | None = _setting(
        None, "train.trace", "FILE", "timeline of all ranks, for Perfetto: run.json"
    )
    model_options: Mapping[str, Any] = _options("model")
    algorithm_options: Mapping[str, Any] = _options("algorithm")
    topology_options: Mapping[str, Any] = _options("topology")
    optimizer_options: Mapping[str, Any] = _options("optimizer")

    def __post_init__(self) -> None:
        for each in own():
            value = _checked(each, getattr(self, each.name), each.name)
            object.__setattr__(self, each.name, value)
        if self.optimizer != "sgd" and (self.momentum is not None or self.nesterov):
            raise ConfigError(
                f"{'momentum' if self.momentum is not None else 'nesterov'} belongs to sgd, {self.optimizer} has "
                "betas: omit it, or set optimizer.betas=[0.9, 0.99]"
            )
        check_optimizer(self.optimizer, self.optimizer_options)
        method(self)

    def complete(self, n: int) -> Settings:
        """The settings of n workers, with the defaults that depend on others."""
        momentum = 0.0 if method(self).own_momentum else 0.9
        graph = None if self.algorithm == "allreduce" else graph_name(self)
        return replace(
            self,
            workers=n,
            lr=RATES[self.optimizer] if self.lr is None else self.lr,
            topology=self.topology or graph,
            momentum=momentum
            if self.optimizer == "sgd" and self.momentum is None
            else self.momentum,
        )

    @classmethod
    def load(cls, settings: Iterable[Setting]) -> Settings:
        """The settings given as ``table.key = value`` in increasing order of precedence.

        Raises
        ------
        ConfigError
            An unknown key, or a bad value; the message names its origin.
        """
        known = {each.metadata["key"]: each for each in own()}
        given: dict[str, Any] = {}
        for setting in settings:
            table, _, key = setting.key.partition(".")
            if setting.key in known:
                each = known[setting.key]
                given[each.name] = _checked(each, _value(setting, each), setting.origin)
            elif table in WITH_OPTIONS:
                given.setdefault(f"{table}_options", {})[key] = (
                    parsed(setting.value) if setting.text else setting.value
                )
            else:
                keys = [name.partition(".")[2] for name in known if name.startswith(f"{table}.")]
                raise ConfigError(
                    f"{setting.origin}: unknown key of [{table}] {key!r}: {nearest(key, keys)}"
                )
        return cls(**given)

    def to_toml(self) -> str:
        """The settings as TOML text."""
        lines = []
        for table in TABLES:
            content = {
                each.metadata["key"].partition(".")[2]: getattr(self, each.name)
                for each in own()
                if each.metadata["key"].startswith(f"{table}.")
            }
            content |= dict(sorted(getattr(self, f"{table}_options", {}).items()))
            lines += [
                f"[{table}]",
                *(
                    f"{key} = {values.text(value)}"
                    for key, value in content.items()
                    if value is not None
                ),
                "",
            ]
        return "\n".join(lines)


def own() -> list[Field[Any]]:
    """The fields of `Settings` that are flags."""
    return [each for each in fields(Settings) if "key" in each.metadata]


def read(text: str, origin: str = "config") -> list[Setting]:
    """The settings in TOML text.

    Raises
    ------
    ConfigError
    """
    from ..experiment.settings import read_toml

    return read_toml(origin, text=text, tables=TABLES)


def names(setting: str) -> dict[str, str]:
    """The names that a setting can have, with a line each; empty for settings that are no names."""
    if setting == "topology":
        found = topologies().described(
            lambda make: (make.__doc__ or "").partition("\n")[0].rstrip(".")
        )
        return {**found, TREES: "two binary trees, each of which mixes half of the parameters"}
    tables = {
        "data": lambda: {
            **image_sets(),
            "FILE.npz": "arrays x_train, y_train, x_test, y_test of your own",
            "FILE.py:NAME": "a function of your own that returns these arrays",
        },
        "model": lambda: {
            **models.names(),
            "FILE.py:NAME": "a function (shape, classes, **options), or a torch.nn.Module, of your own",
        },
        "algorithm": optim.names,
        "schedule": SCHEDULES.copy,
        "optimizer": OPTIMIZERS.copy,
    }
    return tables[setting]() if setting in tables else {}


def method(settings: Settings) -> Algorithm:
    """The algorithm of the settings.

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


def graph(settings: Settings, n: int) -> Any:
    """The topology of n workers, or several of them; None where the algorithm needs none.

    Raises
    ------
    ValueError, TypeError
        Of the function that makes it.
    """
    if settings.algorithm == "allreduce":
        if settings.topology is not None:
            raise ConfigError(
                f"topology {settings.topology}: allreduce averages the gradients of all workers and has none: "
                "omit it"
            )
        check_topology("allreduce, which has no topology,", None, settings.topology_options)
        return None
    if settings.algorithm == "hierarchical":
        size = settings.algorithm_options.get("machine_size", 2)
        if not isinstance(size, int) or size < 1 or n % size:
            raise ConfigError(
                f"algorithm.machine_size is {size!r}, expected a divisor of the number of workers {n}"
            )
        n //= size
    name = graph_name(settings)
    make = getattr(topology, name) if name == TREES else topologies()[name]
    check_topology(name, make, settings.topology_options)
    with named("topology", settings.topology_options):
        made = make(n, **settings.topology_options) if callable(make) else make
    return list(made) if isinstance(made, tuple) else made


def _hint(each: Field[Any]) -> Any:
    return typing.get_type_hints(Settings)[each.name]


def _value(setting: Setting, each: Field[Any]) -> Any:
    """The setting's value, text parsed as TOML if that gives the expected type."""
    for candidate in (parsed(setting.value), setting.value) if setting.text else (setting.value,):
        try:
            return values.converted(candidate, _hint(each))
        except (TypeError, ValueError):
            continue
    return setting.value


def _checked(each: Field[Any], value: Any, origin: str) -> Any:
    """The value of a setting, converted to its type; names are looked up."""
    own = False
    if each.name in OF_FILES and isinstance(value, str):
        value = located(value)
        own = is_labelled(value) if each.name == "data" else is_plugin(value)
    known = names(each.name)
    if isinstance(value, str) and known and value not in known and not own:
        raise ConfigError(
            f"{origin}: unknown {'learning-rate schedule' if each.name == 'schedule' else each.name} {value!r}: "
            f"{nearest(value, known)}"
        )
    if value is None and type(None) in typing.get_args(_hint(each)):
        return None
    try:
        result = values.converted(value, _hint(each))
        if isinstance(result, (int, float)) and not (
            RANGES[each.metadata["range"]](result)
            and (isinstance(result, float) or result < LARGEST)
        ):
            raise ValueError
    except (TypeError, ValueError):
        raise ConfigError(
            f"{origin}: expected {_expected(each)}, got {values.shown(value)}"
        ) from None
    return result


def _expected(each: Field[Any]) -> str:
    hint, kinds = (
        _hint(each),
        {int: "an integer", float: "a number", bool: "true or false", str: "a string"},
    )
    parts, words = (hint, *typing.get_args(hint)), []
    for part in parts:
        if part in kinds:
            words.append(" ".join(filter(None, [kinds[part], each.metadata["range"]])))
        elif typing.get_origin(part) is Literal:
            words += typing.get_args(part)
    return " or ".join(words)
