"""Small models, and their training by hand."""

from __future__ import annotations

SMALL = {
    "mlp": {"hidden": [16]},
    "cnn": {"channels": [4, 8], "hidden": 8},
    "vgg11": {},
    "resnet18": {"width": 4},
    "transformer": {"dim": 16, "patch": 4},
}
