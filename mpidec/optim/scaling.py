"""Gradients that a `GradScaler` of torch has scaled."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Scaled(NamedTuple):
    """What a `GradScaler` has attached to an optimizer for the length of a step.

    Attributes
    ----------
    scale : tensor or None
        What the gradients have been divided by; None without a `GradScaler`, or where it has
        divided them itself.
    found : bool or None
        Whether some gradients are not finite, so that the update is left out; None without a
        `GradScaler`.
    """

    scale: torch.Tensor | None = None
    found: bool | None = None


def unscale(optimizer: torch.optim.Optimizer) -> Scaled:
    """Divide the gradients by the scale that a `GradScaler` has attached to an optimizer."""
    scale, found = optimizer.__dict__.get("grad_scale"), optimizer.__dict__.get("found_inf")
    if scale is not None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(scale.to(parameter.grad.device))
    return Scaled(scale, None if found is None else bool(found))
