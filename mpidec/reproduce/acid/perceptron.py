"""A small network on digits, whose gradient takes 0.1 ms: for simulations of single gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ...datasets import images

Floats = NDArray[np.float64]


class Perceptron:
    r"""Cross-entropy of a perceptron with one hidden layer over the training images of digits, the
    same for each of m agents.

    .. math:: f(x) = \frac1N \sum_s \mathrm{CE}\bigl([\max([a_s, 1] W_1, 0), 1]\, W_2,\, y_s\bigr)

    A row of X holds :math:`W_1` and :math:`W_2`.  It is its own oracle, of gradients over batches.

    Parameters
    ----------
    m, hidden, batch : int
        Agents, hidden units, and images of a batch.

    Examples
    --------
    >>> problem = Perceptron(2, hidden=16, batch=8)
    >>> problem.d, problem.value(np.zeros((2, problem.d))).round(3)
    (1210, array([2.303, 2.303]))
    """

    x_star, check, random = None, False, True

    def __init__(self, m: int, hidden: int, batch: int):
        data = images("digits")
        self.A, self.test_A = (
            np.column_stack([x.reshape(len(x), -1), np.ones(len(x))]).astype(float)
            for x in (data.train_x, data.test_x)
        )
        self.y, self.test_y, self.Y = data.train_y, data.test_y, np.eye(data.classes)[data.train_y]
        self.problem, self.m, self.batch = self, m, batch
        self.shapes = (self.A.shape[1], hidden), (hidden + 1, data.classes)
        self.d = sum(rows * columns for rows, columns in self.shapes)

    def initial(self, seed: int) -> Floats:
        """Return random weights, (d,): normal, with the variance 2 over the number of inputs."""
        rng = np.random.default_rng(seed)
        return np.concatenate(
            [
                np.sqrt(2 / rows) * rng.standard_normal(rows * columns)
                for rows, columns in self.shapes
            ]
        )

    def value(self, X: Floats) -> Floats:
        """Return the losses of the rows, (r, d) -> (r,)."""
        rows = _distinct(X)
        P = self._outputs(rows, self.A)[2][:, np.arange(len(self.y)), self.y]
        return np.broadcast_to(-np.log(P + 1e-300).mean(axis=1), len(X))

    def grad(self, X: Floats, agents: Sequence[int] | None = None) -> Floats:
        """Return the gradients at the rows, (r, d) -> (r, d)."""
        rows = _distinct(X)
        return np.broadcast_to(self._gradient(rows, self.A[None], self.Y[None]), X.shape)

    def start(self, agents: Sequence[int], seed: int) -> Callable[..., Floats]:
        """Return ``gradient(X, k, agents)``, over a batch that each of the agents draws with
        replacement.
        """
        draws = [np.random.default_rng((seed, agent)) for agent in agents]

        def gradient(X: Floats, k: int, agents: Sequence[int] = agents) -> Floats:
            rows = np.array([draws[i].integers(len(self.y), size=self.batch) for i in agents])
            return self._gradient(X, self.A[rows], self.Y[rows])

        return gradient

    def _gradient(self, X: Floats, A: Floats, Y: Floats) -> Floats:
        """Return the gradients at the rows, over images (r or 1, B) and their classes."""
        H, V, P = self._outputs(X, A)
        P = (P - Y) / Y.shape[1]
        B = (P @ V[:, :-1].transpose(0, 2, 1)) * (H[..., :-1] > 0)
        parts = A.transpose(0, 2, 1) @ B, H.transpose(0, 2, 1) @ P
        return np.concatenate([part.reshape(len(X), -1) for part in parts], axis=1)

    def _outputs(self, X: Floats, A: Floats) -> tuple[Floats, Floats, Floats]:
        """Return hidden values with a one, :math:`W_2`, and probabilities, at each row."""
        W1, W2 = np.split(X, [self.shapes[0][0] * self.shapes[0][1]], axis=1)
        V = W2.reshape(-1, *self.shapes[1])
        H = np.maximum(A @ W1.reshape(-1, *self.shapes[0]), 0)
        H = np.concatenate([H, np.ones((*H.shape[:2], 1))], axis=2)
        Z = H @ V
        P = np.exp(Z - Z.max(axis=2, keepdims=True))
        return H, V, P / P.sum(axis=2, keepdims=True)

    def accuracy(self, X: Floats) -> Floats:
        """Return the part of the test images whose class each row names, (r, d) -> (r,)."""
        return np.asarray((self._outputs(X, self.test_A)[2].argmax(2) == self.test_y).mean(axis=1))


def _distinct(X: Floats) -> Floats:
    """Return the first row alone, if all are equal, as at an average."""
    return X[:1] if (X[0] == X).all() else X
