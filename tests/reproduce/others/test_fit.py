"""The fit of a rate finds the slowest of several modes, above what is rounding."""

from __future__ import annotations

import numpy as np
import pytest

from mpidec.reproduce.others.running import slowest_mode

K = np.arange(0, 1500, 4)


def curve(slow: complex, fast: complex, share: float, angle: float = 0.3) -> dict[str, np.ndarray]:
    """The norm of a sum of two modes, of which the slow one begins with a share, and rounding."""
    u, v = np.array([1.0, 0.0]), np.array([np.cos(angle), np.sin(angle)])
    rows = share * (slow ** K[:, None] * u).real + (fast ** K[:, None] * v).real
    noise = 1e-15 * np.random.default_rng(0).random(len(K))
    error = np.linalg.norm(rows, axis=1) + noise
    return {"step": K.astype(float), "error": error[: int(np.argmax(error < 1e-14)) + 1]}


@pytest.mark.parametrize("share", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("fast", [0.5, 0.9, 0.93 * np.exp(1j), -0.92])
@pytest.mark.parametrize("slow", [0.95, 0.95 * np.exp(0.7j), 0.95 * np.exp(0.02j)])
def test_the_slowest_of_two_modes(slow, fast, share):
    assert slowest_mode(curve(slow, fast, share)) == pytest.approx(abs(slow), rel=1e-3)


def test_too_few_records_have_no_rate():
    found = {name: values[::40] for name, values in curve(0.95, 0.5, 1.0).items()}
    assert slowest_mode(found) == np.inf
