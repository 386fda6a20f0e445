"""Gradients that a `GradScaler` of torch has scaled."""

from __future__ import annotations

import torch


class Scaled:
    """What a `GradScaler` has attached to an optimizer for the length of a step; without an
    optimizer, nothing.

    Attributes
    ----------
    scale : tensor or None
        That of the gradients; None without a `GradScaler`, or where they have been divided by it.
    found : bool or None
        Whether some gradients are not finite, so that the update is left out; None without a
        `GradScaler`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer | None = None):
        given = {} if optimizer is None else optimizer.__dict__
        self._groups = [] if optimizer is None else optimizer.param_groups
        self.scale: torch.Tensor | None = given.get("grad_scale")
        found = given.get("found_inf")
        self.found = None if found is None else bool(found)

    def divide(self) -> None:
        """Divide the gradients by the scale."""
        if self.scale is not None:
            with torch.no_grad():
                for group in self._groups:
                    for parameter in group["params"]:
                        if parameter.grad is not None:
                            parameter.grad.div_(self.scale.to(parameter.grad.device))


def unscale(optimizer: torch.optim.Optimizer) -> bool | None:
    """Divide the gradients by the scale that a `GradScaler` has attached to an optimizer for the
    length of a step; return `Scaled.found`.
    """
    scaled = Scaled(optimizer)
    scaled.divide()
    return scaled.found
