"""Models for images of any size, as functions of (shape, classes); user-defined models."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from .. import _validation as check
from .._words import summary

# Channels, height, width; mlp takes any.
Shape = tuple[int, ...]
# Channels of the convolutions; 0 is a max-pooling.
VGG11 = (
    64,
    0,
    128,
    0,
    256,
    256,
    0,
    512,
    512,
    0,
    512,
    512,
    0,
)


def mlp(shape: Shape, classes: int, *, hidden: Sequence[int] = (128,)) -> nn.Module:
    """Multilayer perceptron: linear layers of the `hidden` widths with ReLU between them.

    Examples
    --------
    >>> sum(p.numel() for p in mlp((1, 8, 8), 10, hidden=[32]).parameters())
    2410
    """
    widths = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def cnn(
    shape: Shape, classes: int, *, channels: Sequence[int] = (16, 32), hidden: int = 64
) -> nn.Module:
    """Small convolutional network: 3 x 3 convolutions, each with ReLU and 2 x 2 max-pooling, then
    two linear layers.

    Examples
    --------
    >>> cnn((1, 8, 8), 10)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    depth, height, width = shape
    layers: list[nn.Module] = []
    for a, b in zip([depth, *channels], channels):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
        height, width = -(-height // 2), -(-width // 2)
    features = ([depth, *channels])[-1] * height * width
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def vgg11(shape: Shape, classes: int, *, dropout: float = 0.5) -> nn.Module:
    """VGG-11 for CIFAR without batch norm, with a classifier of two hidden layers of 512 units with
    dropout, as in RelaySGD.

    Images of less than 32 x 32 pixels are possible: the poolings round up.

    Examples
    --------
    >>> sum(p.numel() for p in vgg11((3, 32, 32), 10).parameters())
    9750922
    """
    channels, height, width = shape
    layers: list[nn.Module] = []
    for size in VGG11:
        if size:
            layers += [nn.Conv2d(channels, size, 3, padding=1), nn.ReLU()]
            channels = size
        else:
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
            height, width = -(-height // 2), -(-width // 2)
    _start_convolutions(layers)
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(channels * height * width, 512),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )


class Block(nn.Module):
    """Basic block of a ResNet: two 3 x 3 convolutions with batch norm, and a shortcut.

    Examples
    --------
    >>> Block(4, 8, stride=2)(torch.zeros(1, 4, 6, 6)).shape
    torch.Size([1, 8, 3, 3])
    """

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(channels, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block, (B, channels, H, W) -> (B, out, H / stride, W /
        stride).
        """
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def resnet18(shape: Shape, classes: int, *, width: int = 64) -> nn.Module:
    """ResNet-18 for CIFAR: a 3 x 3 convolution in place of the 7 x 7 one, and no max-pooling;
    `width` channels at first.

    Examples
    --------
    >>> sum(p.numel() for p in resnet18((3, 32, 32), 10).parameters())
    11173962
    """
    layers: list[nn.Module] = [
        nn.Conv2d(shape[0], width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    channels = width
    for stage in range(4):
        out = width << stage
        layers += [Block(channels, out, stride=2 if stage else 1), Block(out, out)]
        channels = out
    model = nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )
    _start_convolutions(model.modules())
    return model


class Tokens(nn.Module):
    """Images as sequences of patches of ``height`` x ``width`` pixels: (B, C, H, W) -> (B, tokens,
    C * height * width).

    Examples
    --------
    >>> Tokens(1, 8)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 8, 24])
    """

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width

    def forward(self, x: Tensor) -> Tensor:
        """Return the patches, row by row."""
        # B, C, rows, height, columns, width.
        patches = x.unflatten(-1, (-1, self.width)).unflatten(-3, (-1, self.height))
        return patches.movedim((-4, -2), (-5, -4)).flatten(-3).flatten(-3, -2)


class Positions(nn.Module):
    """Learned vectors, one for each token, which are added to it.

    Examples
    --------
    >>> Positions(8, 4)(torch.zeros(2, 8, 4)).shape
    torch.Size([2, 8, 4])
    """

    def __init__(self, tokens: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(tokens, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens with their positions."""
        return x + self.weight


class Mean(nn.Module):
    """Mean over the tokens, (B, tokens, dim) -> (B, dim).

    Examples
    --------
    >>> Mean()(torch.ones(2, 8, 4)).shape
    torch.Size([2, 4])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean."""
        return x.mean(dim=-2)


def transformer(
    shape: Shape,
    classes: int,
    *,
    dim: int = 64,
    heads: int = 4,
    layers: int = 2,
    patch: int | None = None,
    dropout: float = 0.0,
) -> nn.Module:
    """Transformer encoder whose tokens are the rows of an image, or its square patches of `patch`
    pixels.

    Parameters
    ----------
    shape, classes : (channels, height, width) and int
    dim : int
        Length of a token, divisible by `heads`; the feed-forward layers have 4 `dim` units.
    heads, layers : int
    patch : int, optional
        Side of a patch, which divides height and width; by default a token is a row of the image.
    dropout : float

    Raises
    ------
    ValueError
        If the patches do not fill the image, or `dim` is not divisible by `heads`.

    Examples
    --------
    >>> transformer((1, 8, 8), 10, patch=2)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    channels, height, width = shape
    rows, columns = (1, width) if patch is None else (patch, patch)
    if rows < 1 or height % rows or width % columns:
        raise ValueError(
            f"patch = {patch}, expected a divisor of the height {height} and of the width {width} "
            "of the images"
        )
    if dim % heads:
        raise ValueError(f"dim = {dim}, expected a multiple of heads = {heads}")
    tokens = (height // rows) * (width // columns)
    blocks = [
        nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        for _ in range(layers)
    ]
    return nn.Sequential(
        Tokens(rows, columns),
        nn.Linear(channels * rows * columns, dim),
        Positions(tokens, dim),
        *blocks,
        nn.LayerNorm(dim),
        Mean(),
        nn.Linear(dim, classes),
    )


def _start_convolutions(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


MODELS: dict[str, Callable[..., nn.Module]] = {
    model.__name__: model for model in (mlp, cnn, vgg11, resnet18, transformer)
}


def names() -> dict[str, str]:
    """Return the one-line description of every model, by name.

    Examples
    --------
    >>> list(names())
    ['mlp', 'cnn', 'vgg11', 'resnet18', 'transformer']
    """
    return {name: summary(model) for name, model in MODELS.items()}


def make(name: str, shape: Shape, classes: int, seed: int = 0, **options: Any) -> nn.Module:
    """Return a model by its name; the same `seed` gives the same start, and torch's global random
    numbers stay as they are.

    Parameters
    ----------
    name : {"mlp", "cnn", "vgg11", "resnet18", "transformer"}
    shape : (channels, height, width)
    classes : int
    seed : int
    **options
        Options of the model, such as ``hidden=[256, 64]`` of mlp.

    Raises
    ------
    ValueError
        If there is no such model, or it has no such option, or an option has an impossible value.

    Examples
    --------
    >>> a, b = (make("mlp", (1, 8, 8), 10, seed=3) for _ in range(2))
    >>> all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))
    True
    """
    return start(name, shape, classes, seed, options)


def start(
    model: str | Callable[..., nn.Module],
    shape: Shape,
    classes: int,
    seed: int,
    options: Mapping[str, Any],
    strict: bool = True,
) -> nn.Module:
    """Return a model as `make` does, or that which a function or class of the user's own makes.

    Parameters
    ----------
    model : str or callable
        A name, or a function of ``(shape, classes, **options)``.
    shape, classes, seed, options
        As of `make`.
    strict : bool
        Whether an own model must map `(B, *shape)` to (B, classes).

    Raises
    ------
    ValueError, TypeError
        As `make`; or if an own model is no module, or has no parameters, or does not return what is
        expected.
    Exception
        What an own model raises.

    Examples
    --------
    >>> start(lambda shape, classes: nn.Linear(shape[0], classes), (3,), 2, seed=0, options={})
    Linear(in_features=3, out_features=2, bias=True)
    """
    if isinstance(model, str):
        model = check.component(model, MODELS, "model")
        _check(model, MODELS[model], options)
        if len(shape) != 3 and model != "mlp":
            raise ValueError(
                f"model {model} takes images (channels, height, width), got samples of the shape "
                f"{tuple(shape)}: use "
                "mlp, or a model of your own"
            )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        made = (MODELS[model] if isinstance(model, str) else model)(
            tuple(shape), classes, **options
        )
        if not isinstance(model, str):
            _try(made, shape, classes, strict)
    return made


def _try(model: object, shape: Shape, classes: int, strict: bool) -> None:
    """Evaluate an own model at two samples, which makes the parameters of lazy modules, too."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {model!r:.60}")
    model.eval()
    with torch.no_grad():
        outputs = model(torch.zeros(2, *shape))
    model.train()
    given = tuple(outputs.shape) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
    if given != (2, classes) if strict else not isinstance(outputs, Tensor):
        raise ValueError(
            f"for samples of the shape {(2, *shape)} the output is {given}, expected "
            + (f"{(2, classes)}: one number per sample and class" if strict else "a tensor")
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("it has no parameters to train, expected some that require gradients")


def _check(name: str, model: Callable[..., nn.Module], options: Mapping[str, Any]) -> None:
    """Raise ValueError for options that the model does not have, or whose values are not of its
    annotations' types.
    """
    known, hints = list(inspect.signature(model).parameters)[2:], typing.get_type_hints(model)
    for option, value in options.items():
        if option not in known:
            raise ValueError(f"model {name} has no option {option}, expected {', '.join(known)}")
        if hints[option] is float:
            good, expected = type(value) in (int, float) and 0 <= value < 1, "a number in [0, 1)"
        elif hints[option] == Sequence[int]:
            good, expected = (
                isinstance(value, (list, tuple)) and all(map(_size, value)),
                "a list of integers > 0, such as [32, 16]",
            )
        else:
            good, expected = (
                _size(value) or (value is None and hints[option] is not int),
                "an integer > 0",
            )
        if not good:
            raise ValueError(f"model {name}: {option} is {value!r:.60}, expected {expected}")


def _size(value: object) -> bool:
    return type(value) is int and value > 0
