"""Models: shapes, seeds, sizes of the papers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


from helpers.models import SMALL  # noqa: E402

from mpidec.nn import models  # noqa: E402

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)])
def test_models_train_on_images_of_any_size(name, shape):
    model = models.make(name, shape, 10, **SMALL[name])
    outputs = model(torch.zeros(2, *shape))
    outputs.sum().backward()
    assert outputs.shape == (2, 10) and all(p.grad is not None for p in model.parameters())


def test_the_start_of_a_model_is_its_seed_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a = models.make("mlp", (1, 8, 8), 10, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    b, c = models.make("mlp", (1, 8, 8), 10, seed=1), models.make("mlp", (1, 8, 8), 10, seed=2)
    assert torch.equal(a[1].weight, b[1].weight) and not torch.equal(a[1].weight, c[1].weight)


def test_sizes_are_those_of_the_papers():
    """VGG-11 of RelaySGD's code, ResNet-18 for CIFAR-10."""
    size = [
        sum(p.numel() for p in models.make(name, (3, 32, 32), 10).parameters())
        for name in ("vgg11", "resnet18")
    ]
    assert size == [9750922, 11173962]


def test_patches_are_the_pixels_of_squares():
    x = torch.arange(2 * 3 * 4 * 6.0).view(2, 3, 4, 6)
    patches = models.Tokens(2, 3)(x)
    assert torch.equal(patches[1, 1], x[1, :, 0:2, 3:6].flatten()) and torch.equal(
        patches[0, 2], x[0, :, 2:4, 0:3].flatten()
    )


@pytest.mark.parametrize(
    "call, said",
    [
        (
            lambda: models.make("mpl", (1, 8, 8), 10),
            "unknown model 'mpl': did you mean mlp.* expected one of mlp, cnn",
        ),
        (
            lambda: models.make("mlp", (1, 8, 8), 10, depth=3),
            "model mlp has no option depth, expected hidden",
        ),
        (
            lambda: models.make("mlp", (1, 8, 8), 10, hidden=[True]),
            r"model mlp: hidden is \[True\], expected a list of integers > 0",
        ),
        (
            lambda: models.make("transformer", (1, 8, 8), 10, dropout=1),
            "model transformer: dropout is 1, expected a number in",
        ),
        (
            lambda: models.make("resnet18", (1, 8, 8), 10, width=None),
            "model resnet18: width is None, expected an integer > 0",
        ),
        (
            lambda: models.make("transformer", (1, 8, 8), 10, patch=3),
            "patch = 3, expected a divisor",
        ),
        (
            lambda: models.make("transformer", (1, 8, 8), 10, dim=10),
            "dim = 10, expected a multiple of heads = 4",
        ),
    ],
)
def test_wrong_use(call, said):
    with pytest.raises(ValueError, match=said):
        call()
