"""The calls that make one mixer of another: a new one has its examples here."""

import numpy as np


def shorter(step, agent, row, receiver):
    return row / (1 + np.abs(row).sum()) * (receiver + step + 1)


def nearest(x, X, w):
    if not len(X):
        return x
    return (x + X[np.argmin(np.abs(X - x).max(axis=1))]) / 2


def some_lost(k, receivers, senders):
    return (receivers + 2 * senders + k) % 3 == 0


# The calls that make one mixer of another, each with rows, columns and draws in which arrays could meet.
CALLS = {
    "triggered": [lambda W: W.triggered(0.0)],  # others judge whole messages: test_triggered.py
    "compress": [
        lambda W: W.compress("blockwise8", feedback=False, block=4),
        lambda W: W.compress("qsgd", feedback=False, levels=3, seed=1),
        lambda W: W.compress("float16", feedback=False, gamma=0.5),
    ],
    "attacked": [
        lambda W: W.attacked({1: shorter, 4: "sign_flip"}),
        lambda W: W.attacked({2: lambda step, agent, row: row * np.abs(row).max(), 5: 100.0}),
    ],
    "noisy": [lambda W: W.noisy(0.3, seed=2)],
    "lossy": [
        lambda W: W.lossy(0.4, seed=3),
        lambda W: W.lossy(some_lost, fill="own"),
        lambda W: W.lossy(0.4, fill="zero"),
    ],
    "robust": [
        lambda W: W.robust("clip", tau=1.0),
        lambda W: W.robust(nearest),
        lambda W: W.robust("clip", delta=0.3),
        lambda W: W.robust("trimmed_mean"),
    ],
    "repeat": [lambda W: W.repeat(2), lambda W: W.repeat(1)],
    "accelerate": [lambda W: W.accelerate(3), lambda W: W.accelerate(4, "fastmix")],
}
