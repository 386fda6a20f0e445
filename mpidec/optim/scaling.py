"""Gradients that a `GradScaler` of torch has scaled."""

from __future__ import annotations

import torch


def unscale(optimizer: torch.optim.Optimizer) -> bool | None:
    """Divide the gradients by the scale that a `GradScaler` has attached to an optimizer for the
    length of a step.

    Returns
    -------
    bool or None
        Whether some are not finite, so that the update is left out; None without a `GradScaler`.
    """
    scale, found = optimizer.__dict__.get("grad_scale"), optimizer.__dict__.get("found_inf")
    if scale is not None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(scale.to(parameter.grad.device))
    return None if found is None else bool(found)
