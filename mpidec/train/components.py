"""Criteria, optimizers, schedules and metrics: those of torch by name, and the user's own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn, optim

from ..datasets import Targets, raised
from ..exceptions import ConfigError
from ..experiment import SchemaEntry, Setting
from ..nn.internals import factor
from ..plugins import Components, is_plugin, short
from .options import check_names, named

RATES = {"sgd": 0.1}  # where that of torch suits other models
OF_CLASSES = ("cross_entropy", "nll_loss", "multi_margin_loss")  # targets are integers
ADAM = {
    "betas": SchemaEntry(
        hint=tuple[float, float],
        range="in [0, 1)",
        expected="two numbers in [0, 1), such as [0.9, 0.99]",
    ),
    "eps": SchemaEntry(hint=float, range="> 0"),
    "amsgrad": SchemaEntry(hint=bool),
}
COMMON = dict.fromkeys(("maximize", "foreach", "fused"), SchemaEntry(hint=bool))
OPTIMIZER_OPTIONS: dict[str, dict[str, SchemaEntry]] = {
    "sgd": {"dampening": SchemaEntry(hint=float, range=">= 0"), **COMMON},
    "adam": {**ADAM, **COMMON},
    "adamw": {**ADAM, **COMMON},
}


def takes(places: int, what: str) -> Callable[[object], str | None]:
    """Return the check that a component can be called with so many arguments, `what` they are."""

    def check(thing: object) -> str | None:
        expected = f"expected a function {what}"
        if not callable(thing):
            return f"of type {type(thing).__name__}, {expected}"
        try:
            inspect.signature(thing).bind_partial(*range(places))
        except TypeError:
            return f"{getattr(thing, '__name__', thing)}{inspect.signature(thing)}, {expected}"
        except ValueError:  # one of C without a signature
            return None
        return None

    return check


def _criterion(thing: object) -> str | None:
    if inspect.isclass(thing):
        known = issubclass(thing, nn.Module)
        return None if known else f"the class {thing.__name__}, expected a torch.nn.Module"
    return takes(2, "(outputs, targets) that returns the mean loss, or a torch.nn.Module")(thing)


CRITERIA: Components[Any] = Components(
    "criterion",
    "mpidec.criteria",
    {
        "cross_entropy": nn.CrossEntropyLoss,
        "nll_loss": nn.NLLLoss,
        "multi_margin_loss": nn.MultiMarginLoss,
        "mse_loss": nn.MSELoss,
        "l1_loss": nn.L1Loss,
        "smooth_l1_loss": nn.SmoothL1Loss,
        "huber_loss": nn.HuberLoss,
        "binary_cross_entropy": nn.BCELoss,
        "binary_cross_entropy_with_logits": nn.BCEWithLogitsLoss,
        "multilabel_soft_margin_loss": nn.MultiLabelSoftMarginLoss,
        "soft_margin_loss": nn.SoftMarginLoss,
        "poisson_nll_loss": nn.PoissonNLLLoss,
        "kl_div": nn.KLDivLoss,
    },
    _criterion,
)
OPTIMIZERS: Components[Any] = Components(
    "optimizer",
    "mpidec.optimizers",
    {
        name.lower(): made
        for name, made in sorted(vars(optim).items(), key=lambda item: item[0].lower())
        if inspect.isclass(made)
        and issubclass(made, optim.Optimizer)
        and made not in (optim.Optimizer, optim.LBFGS, optim.SparseAdam)
    },
    takes(1, "(parameters, lr, **options) that returns a torch.optim.Optimizer, or such a class"),
)
SCHEDULES: Components[Any] = Components(
    "learning-rate schedule", "mpidec.schedules", {}, takes(2, "(epoch, epochs) of two numbers")
)
METRICS: Components[Any] = Components(
    "metric", "mpidec.training_metrics", {}, takes(2, "(outputs, targets) that returns a number")
)


def _parameters(make: Callable[..., object]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the parameters of a function by name, and whether it takes any option."""
    known = dict(inspect.signature(make).parameters)
    return known, any(each.kind is each.VAR_KEYWORD for each in known.values())


class LossFunction:
    """The loss of each worker.

    Parameters
    ----------
    name : str
    options : mapping
        Further arguments of it.

    Attributes
    ----------
    targets : {"classes", "real", "any"}
        What it takes, as in `mpidec.datasets.images`.

    Raises
    ------
    ValueError
        For an option that it does not have, or an impossible value.
    """

    def __init__(self, name: str, options: Mapping[str, Any]):
        self._make: Callable[..., Any] = CRITERIA.find(name)
        own = is_plugin(name)
        known, any_ = _parameters(self._make)
        leave = () if own else ("reduction", "reduce", "size_average")
        if not any_:
            free = [*known][0 if inspect.isclass(self._make) else 2 :]
            check_names("criterion", name, options, [key for key in free if key not in leave])
        # Without options the mean over a batch is that of all entries: one call for all workers.
        self._together = not own and not options
        if self._together:
            options = {"reduction": "none"}
        with named("criterion", {} if self._together else options):
            given = {key: _tensor(value) for key, value in options.items()}
            bound: Any = partial(self._make, **given)
            self._function: Callable[[Tensor, Tensor], Tensor] = (
                bound() if inspect.isclass(self._make) else bound
            )
        self.name = short(name)
        self.targets: Targets = "any" if own else "classes" if name in OF_CLASSES else "real"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of each worker, (m,), from outputs and targets (m, B, ...)."""
        m = len(outputs)
        if self._together:
            losses = self._function(outputs.flatten(0, 1), targets.flatten(0, 1))
            return losses.reshape(m, -1).mean(1)
        return torch.stack([self._function(z, y).mean() for z, y in zip(outputs, targets)])

    def attempt(self, outputs: Tensor, targets: Tensor) -> None:
        """Compute the loss of a few samples, (1, B, ...); raise ValueError if that fails."""
        shapes = f"outputs {tuple(outputs.shape[1:])}, targets {tuple(targets.shape[1:])}"
        if self.targets == "real" and outputs.shape != targets.shape:
            raise ValueError(
                f"criterion {self.name}: {shapes}, expected the same shape: choose another "
                "criterion, or a model with as many outputs"
            )
        try:
            loss = self(outputs, targets)
        except Exception as error:
            raise ValueError(
                f"criterion {self.name}: {shapes}: {raised(error, self._make)}"
            ) from error
        if not loss.requires_grad:
            raise ValueError(f"criterion {self.name}: its loss does not depend on the outputs")


def _tensor(value: object) -> Any:
    """Return a list of an option as the tensor that torch expects."""
    return torch.tensor(value) if isinstance(value, (list, tuple)) else value


def check_optimizer(name: str, settings: Mapping[str, object], options: Mapping[str, Any]) -> None:
    """Check settings and options of an optimizer.

    Raises
    ------
    ConfigError
        If it has none of that name, or the value is impossible.
    """
    parameters, any_ = _parameters(OPTIMIZERS.find(name))
    own = [key for key in [*parameters][1:] if key not in ("lr", *settings)]
    for key, value in settings.items():
        if value and not any_ and key not in parameters:
            others = f": its options are {', '.join(own)}" if own else ""
            raise ConfigError(f"{key}={value}: {short(name)} has no {key}: omit it{others}")
    schema = OPTIMIZER_OPTIONS.get(name)
    if schema is not None or not any_:
        check_names("optimizer", name, options, own if schema is None else schema)
    for key, entry in (schema or {}).items():
        if key in options:
            entry.convert(Setting(key, options[key], f"optimizer.{key}", text=False))


def default_rate(name: str) -> float:
    """Return the learning rate of an optimizer by default.

    Raises
    ------
    ConfigError
        If it has none.
    """
    if name in RATES:
        return RATES[name]
    known = _parameters(OPTIMIZERS.find(name))[0]
    rate = known["lr"].default if "lr" in known else None
    if not isinstance(rate, (int, float)):
        raise ConfigError(f"{short(name)} has no learning rate by default: set `lr=`")
    return float(rate)


def make_optimizer(
    name: str,
    settings: Mapping[str, object],
    options: Mapping[str, Any],
    parameters: Iterable[Tensor],
    m: int,
) -> optim.Optimizer:
    """Return the optimizer of m workers, whose parameters are stacked.

    Parameters
    ----------
    name : str
    settings : mapping
        `lr`, `weight_decay`, `momentum` and `nesterov`, passed on as far as it has them.
    options : mapping
    parameters : iterable of tensors
    m : int

    Raises
    ------
    ValueError
        If it refuses its arguments, or does not treat each entry by itself where m > 1.
    """
    make = OPTIMIZERS.find(name)
    known, any_ = _parameters(make)
    given = {key: value for key, value in settings.items() if (any_ and value) or key in known}
    with named("optimizer", options):
        bound = partial(
            make, **{k: v for k, v in given.items() if v is not None and v is not False}, **options
        )
        try:
            made = bound(parameters)
        except Exception as error:
            said = raised(error, make) if is_plugin(name) else str(error)
            raise ValueError(f"optimizer {short(name)}: {said}") from error
    if not isinstance(made, optim.Optimizer):
        raise ValueError(
            f"optimizer {short(name)} returns {made!r:.60}, expected a torch.optim.Optimizer"
        )
    if m > 1 and name not in OPTIMIZER_OPTIONS:
        _check_elementwise(name, bound)
    return made


def _check_elementwise(name: str, make: Callable[..., optim.Optimizer]) -> None:
    """Raise ValueError if the update of one worker's parameter depends on those of others, when
    they are stacked: compare two steps.
    """
    start, *gradients = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    places = [start.clone(), start[0].clone(), start[1].clone()]
    try:
        with torch.random.fork_rng(devices=[]):
            steps = [make([nn.Parameter(place)]) for place in places]
            for gradient in gradients:
                for one, mine in zip(steps, (gradient, *gradient)):
                    (parameter,) = one.param_groups[0]["params"]
                    parameter.grad = mine.clone()
                    one.step()
        alike = torch.allclose(places[0], torch.stack(places[1:]), atol=1e-6)
    except (RuntimeError, ValueError, LookupError):
        alike = False
    if not alike:
        raise ValueError(
            f"optimizer {short(name)} does not treat each entry of a parameter by itself, and "
            "cannot train several workers of one process: start one rank for each worker (mpirun)"
        )


class Rate:
    """Learning rate of each step.

    Parameters
    ----------
    schedule : str
    lr : float
    epochs : int
    scale : float
        As of `mpidec.nn.schedules.goyal`.
    """

    def __init__(self, schedule: str, lr: float, epochs: int, scale: float):
        self._name, self._lr, self._epochs, self._scale = schedule, lr, epochs, scale
        self._own = SCHEDULES.find(schedule) if is_plugin(schedule) else None

    def __call__(self, epoch: float) -> float:
        """Return the rate at a fractional epoch.

        Raises
        ------
        ConfigError
            If a schedule of the user's own raises, or returns anything else than a number >= 0.
        """
        if self._own is None:
            return self._lr * factor(self._name, epoch, self._epochs, self._scale)
        where = f"schedule {short(self._name)} at epoch {epoch:g} of {self._epochs}"
        try:
            found = self._own(epoch, self._epochs)
            number = float(found)
        except Exception as error:
            raise ConfigError(f"{where}: {raised(error, self._own)}") from error
        if not (math.isfinite(number) and number >= 0):
            raise ConfigError(f"{where} returns {found!r:.60}, expected a number >= 0")
        return self._lr * number


class OwnMetrics:
    """Metrics of the user's own.

    Parameters
    ----------
    places : mapping
        ``FILE.py:F`` by name.
    """

    def __init__(self, places: Mapping[str, str]):
        self._functions = {name: METRICS.find(place) for name, place in places.items()}
        self.names = tuple(places)

    def __call__(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the metrics of one worker, from its outputs for the whole test set.

        Raises
        ------
        ConfigError
            If a metric raises, or returns anything else than a number.
        """
        found = {}
        for name, function in self._functions.items():
            try:
                value = function(outputs, targets)
                found[name] = float(value)
            except Exception as error:
                raise ConfigError(f"metric {name}: {raised(error, function)}") from error
        return found
