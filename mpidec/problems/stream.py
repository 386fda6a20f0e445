"""Problems with streaming data: one sample per agent and step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _validation as valid
from .._complex import squares
from .._random import Streams
from ..protocols import Sample
from .members import known_minimizer, targets_of, x_star_of
from .oracles import Gradients, Measured, Oracle, hosted
from .products import adjoint, times
from .terms import Term, checked_term

Array = NDArray[Any]  # real or complex
# draw(rng, agent, k), of a step k or of the steps of a block
Draw = Callable[[np.random.Generator, int, Any], tuple[ArrayLike, ArrayLike]]
Loss = Callable[[Array, Array, Array], tuple[float, ArrayLike]]

NUMBERS = "biufc"  # kinds of dtypes
# Held-out samples of an agent, and those of a loss that is called for each of them.
MANY, FEW = 1000, 100


class Stream(Oracle):
    r"""Streaming problem: one sample per agent and step, used once, as in adaptive filters.

    .. math::
        f_i(x) = \mathbb{E}\, \tfrac12 |y_i - u_i^T x|^2, \qquad
        g_i^k = \overline{u_i^k} \left( (u_i^k)^T x_i - y_i^k \right)

    With this gradient, `mpidec.solvers.DGD` is diffusion LMS.

    Parameters
    ----------
    draw : callable
        ``draw(rng, agent, k) -> (u, y)``: the sample that an agent, by its number among all,
        receives in step k; u has the shape (d,), y is a number, both real or complex.  `rng` is a
        `numpy.random.Generator` that belongs to (seed, agent, k), so that a sample depends neither
        on the number of ranks nor on what was drawn before: `draw` is to have no state of its own.
    m : int
        Number of local agents; may be 0.
    d : int
        Length of a row.
    loss : "least_squares" or callable
        ``loss(x, u, y) -> (value, gradient)`` of one sample at the point x, (d,); y may then have
        any shape.  The gradient of a complex point is :math:`2\, \partial / \partial \bar x`, with
        which :math:`|x|^2 / 2` has the gradient x.
    lo : int
        Number of the first local agent among all: `net.lo`.
    block : int
        Number of samples that one call of `draw` returns: with more than 1, k is an array of so
        many consecutive steps, u has the shape (block, d) and y (block,), and `rng` belongs to
        (seed, agent, k[0]). Many runs at once, ``solve(..., runs=100)``, are fast with such blocks.
    seed : int
        Seed of the samples, beside that of the run, ``solve(..., seed=...)``.
    x_star : (d,) or (n, d) array or callable, optional
        The minimizer of the average over all agents; ``x_star(k)`` of one that moves; or the
        minimizer of each of all n agents' own function, its target, from which errors are then
        measured.
    term : Term, optional
        That is added to each agent's function, such as ``problems.l1(0.1)``: for solvers that take
        proximal steps.  `x_star` is then the minimizer with it, or what errors are to be measured
        from.
    noise : float or (m,) array
        Standard deviation of the noise in the y of each local agent, by which solvers that take
        samples (`mpidec.solvers.DiffusionRLS`) weigh them; for complex samples, of its modulus.
    held_out : int, optional
        Number of samples of each agent over which `value` and `grad` average; 1000, or 100 for a
        user-defined loss.
    check : bool
        Whether `solve` compares the gradients of a user-defined loss with differences of its
        values, see `Custom`.

    Raises
    ------
    ValueError, TypeError
        If an argument is invalid, or `draw` or `loss` returns something else.

    Notes
    -----
    It is an oracle, and its own problem.  `value` and `grad` are means over held-out samples, which
    no run receives: ``draw(rng, agent, k)`` of k = 0, ..., held_out - 1 with other random numbers
    (of k = 0 alone, if `x_star` moves).  From them `step_size="auto"` and `mpidec.theory` have the
    curvatures, and runs their `objective` and `gradient_norm`, which do not vanish at `x_star`.
    Of a minimizer that moves, they know where it begins.

    With `x_star`, runs record the mean-square deviation `msd`, the average of :math:`\|x_i -
    x^\star\|^2` over the agents; with targets :math:`x^\star_i`, the errors of `mpidec.solve` are
    those of the deviations :math:`x_i - x^\star_i`, relative to the root mean square of
    :math:`\|x^\star_i\|`.

    Nothing is communicated.

    Examples
    --------
    Diffusion LMS of 8 agents that look for w:

    >>> import mpidec, numpy as np
    >>> w = np.array([1.0, -2.0])
    >>> def draw(rng, agent, k):
    ...     u = rng.standard_normal(2)
    ...     return u, u @ w + 0.1 * rng.standard_normal()
    >>> stream = mpidec.problems.Stream(draw, m=8, d=2, x_star=w)
    >>> result = mpidec.solve(stream, mpidec.solvers.DGD(0.05), mpidec.topology.ring(8), steps=400)
    >>> bool(result.metrics["error_rms"][-1] < 0.02)
    True

    References
    ----------
    A. H. Sayed, *Adaptation, Learning, and Optimization over Networks*, Foundations and Trends in
    Machine Learning 7 (2014), section 2.3 (complex LMS) and chapter 7 (diffusion).
    """

    sampled = True
    term: Term | None = None

    def __init__(
        self,
        draw: Draw,
        m: int,
        d: int,
        *,
        loss: str | Loss = "least_squares",
        lo: int = 0,
        block: int = 1,
        seed: int = 0,
        x_star: ArrayLike | Callable[[int], ArrayLike] | None = None,
        noise: ArrayLike = 1.0,
        held_out: int | None = None,
        check: bool = True,
        term: Term | None = None,
    ) -> None:
        valid.takes(draw, "Stream: draw", "rng", "agent", "k")
        if callable(loss):
            valid.takes(loss, "Stream: loss", "x", "u", "y")
        else:
            valid.choice(loss, "Stream: loss", ("least_squares",), ", or loss(x, u, y)")
        self.problem, self._draw, self.loss = self, draw, loss
        self.m = valid.integer(m, "Stream: m", least=0)
        self.d = valid.integer(d, "Stream: d")
        self.lo = valid.integer(lo, "Stream: lo", least=0)
        self.block = valid.integer(block, "Stream: block")
        self.seed = valid.integer(seed, "Stream: seed", least=0)
        few = FEW if callable(loss) else MANY
        self._count = valid.integer(few if held_out is None else held_out, "Stream: held_out")
        first = self.lo if m else 0
        U, y = self.drawn(self._streams("held out"), first, 0)
        #: float64 or complex128, as the samples are.
        self.dtype = np.result_type(U, y if y.dtype.kind == "c" else U, np.float64)
        self.check = check and callable(loss)
        self.x_star = known_minimizer(x_star, self.d, max(self.lo + self.m, 1))
        self.term = checked_term(term, self.dtype)
        deviations = valid.real(noise, "Stream: noise")
        if deviations.shape not in ((), (self.m,)) or not (deviations > 0).all():
            raise ValueError(
                f"Stream: noise is {noise!r:.60}, expected a number > 0, or one for each of the "
                f"{self.m} local agents"
            )
        self._variances = np.broadcast_to(deviations, self.m)[:, None, None] ** 2.0

    def _extent(self) -> dict[str, object]:
        return {"m": self.m, "d": self.d}

    def start(self, agents: Sequence[int], seed: int) -> Gradients:
        """Return ``gradient(X, k)`` for the local `agents` (numbers among all agents)."""
        return self.of_runs(agents, [seed])

    def of_runs(self, agents: Sequence[int], seeds: Sequence[int]) -> Gradients:
        """Return ``gradient(X, k)`` of several runs at once; see `Oracle.of_runs`."""
        mine = self._mine(agents)
        received = Received(self, [self._streams("stream", seed) for seed in seeds])

        def gradient(X: Array, k: int, agents: Sequence[int] | None = None) -> Array:
            some = mine if agents is None else [mine[i] for i in agents]
            G = self._losses(X.reshape(-1, self.d, 1), *received(some, k))[1]
            return G.reshape(X.shape)

        return Gradients(gradient, self.m)

    def samples(self, agents: Sequence[int], seed: int) -> Measured | None:
        """Return ``sample(k)``, those of step k; None with a user-defined loss."""
        mine, received = self._mine(agents), Received(self, [self._streams("stream", seed)])

        def sample(k: int) -> Sample:
            return Sample(*received(mine, k), self._variances)

        return None if callable(self.loss) else sample

    def information(self) -> Array:
        r"""Return what a sample of each agent tells on average, :math:`\mathbb{E}\, u_i^*
        u_i^T / \sigma_i^2`, (m, d, d), over the held-out samples.
        """
        U = self._held[0]
        found: Array = adjoint(U, U) / U.shape[1] / self._variances
        return found

    def value(self, X: Array) -> NDArray[np.float64]:
        """Return f_i at row i, (m, d) -> (m,), the mean over held-out samples, with the term."""
        values = self.held_out(X[:, :, None])[0][:, 0]
        return values if self.term is None else values + self.term.value(X)

    def grad(self, X: Array, agents: Sequence[int] | None = None) -> Array:
        """Return the gradient of f_i, without the term, at row i, (m, d) -> (m, d), the mean over
        held-out samples; with `agents`, of these local agents, one row of X for each.
        """
        U, Y = self._held
        some = slice(None) if agents is None else list(agents)
        return self._losses(X[:, :, None], U[some], Y[some])[1][:, :, 0]

    def held_out(self, X: Array) -> tuple[NDArray[np.float64], Array]:
        """Return value and gradient of f_i, without the term, at each column of X_i, (m, d, c) ->
        (m, c), (m, d, c).
        """
        return self._losses(X, *self._held)

    @property
    def smoothness(self) -> NDArray[np.float64]:
        r"""The mean of :math:`\|u_i\|^2`, (m,): a smoothness constant with which steps of single
        samples are stable, too.  A ValueError for a user-defined loss.
        """
        if callable(self.loss):
            raise ValueError(
                "the smoothness of a Stream with a user-defined loss is unknown: pass a step_size "
                "to the solver"
            )
        return np.asarray((np.abs(self._held[0]) ** 2).sum(axis=2).mean(axis=1))

    @property
    def metrics(self) -> dict[str, Callable[[Array, range, int], Array]]:
        """The squared deviation of each agent from the minimizer, or its own, if known, by name."""
        targets = targets_of(self)

        def msd(X: Array, agents: range, k: int) -> Array:
            x = x_star_of(self, k) if targets is None else targets[agents]
            return np.asarray(squares(X - x).sum(axis=1))

        return {} if self.x_star is None else {"msd": msd}

    def _mine(self, agents: Sequence[int]) -> range:
        """Return the local agents, which are to be those of a run."""
        return hosted(self.lo, self.m, agents, "Stream", "(draw, m=net.m, d=d, lo=net.lo)")

    # -- samples -----------------------------------------------------------------------------------

    def _streams(self, purpose: str, run: int = 0) -> Streams:
        """Return the random numbers for one purpose, from the seeds of the stream and of the
        run.
        """
        return Streams.of_run(self.seed, valid.integer(run, "seed", least=0), purpose)

    @cached_property
    def _held(self) -> tuple[Array, Array]:
        """The held-out samples; for least squares d + 1 others of the same mean loss, if there are
        fewer.
        """
        streams, still = self._streams("held out"), callable(self.x_star)
        if not self.m:
            return np.empty((0, self._count, self.d)), np.empty((0, self._count))
        drawn = [
            self.drawn(streams, agent, first, still)
            for agent in range(self.lo, self.lo + self.m)
            for first in range(0, self._count, self.block)
        ]
        U, Y = self.stacked(drawn, self.m)
        U, Y = U[:, : self._count], Y[:, : self._count]
        if callable(self.loss) or self._count <= self.d + 1:
            return U, Y
        # d + 1 samples with the same second moments, from a QR factorization of [U, y], have the
        # same mean loss and gradient at every point.
        R = np.linalg.qr(np.concatenate([U, Y[:, :, None]], axis=2), mode="r")
        R *= np.sqrt((self.d + 1) / self._count)
        return np.ascontiguousarray(R[:, :, : self.d]), np.ascontiguousarray(R[:, :, self.d])

    def drawn(
        self, streams: Streams, agent: int, first: int, still: bool = False
    ) -> tuple[Array, Array]:
        """Return the sample of step `first`, u and y, or the block of those that begins there; all
        of step 0 if the minimizer is to stay `still`.
        """
        k, block = 0 if still else first, () if self.block == 1 else (self.block,)
        steps = k + (not still) * np.arange(self.block) if block else k
        try:
            u, y = self._draw(streams.at(agent, first), agent, steps)
        except (TypeError, ValueError) as error:
            where = f"Stream: draw(rng, agent={agent}, k={k})"
            raise type(error)(f"{where}, expected (u, y): {error}") from error
        # Copies: draw may return the same arrays again.
        u, y = np.array(u), np.array(y)
        free = callable(self.loss)  # to take any y
        lead = y.shape[: len(block)] if free else y.shape
        if u.shape != (*block, self.d) or lead != block:
            raise ValueError(
                f"Stream: draw(rng, agent={agent}, k={k}) returns u and y of shapes {u.shape} and "
                f"{y.shape}, expected {(*block, self.d)} and {block}"
            )
        if u.dtype.kind not in NUMBERS or not (free or y.dtype.kind in NUMBERS):
            raise ValueError(
                f"Stream: draw(rng, agent={agent}, k={k}) returns {u.dtype} and {y.dtype}, "
                "expected numbers"
            )
        return u, y

    def stacked(self, drawn: Sequence[tuple[Array, Array]], m: int) -> tuple[Array, Array]:
        """Return samples, or blocks of them, as arrays: U, (m, ..., d), and Y, (m, ...)."""
        try:
            U, Y = (np.array(part) for part in zip(*drawn))
        except ValueError:
            raise ValueError("Stream: draw returns y of several shapes, expected one") from None
        U = U.reshape(m, -1, self.d)
        return U, Y.reshape(*U.shape[:2], *Y.shape[1 if self.block == 1 else 2 :])

    def _losses(self, X: Array, U: Array, Y: Array) -> tuple[NDArray[np.float64], Array]:
        """Return the mean loss of the samples (U[i], Y[i]) at the columns of X[i], (m, c), and its
        gradients, (m, d, c).
        """
        if callable(self.loss):
            columns = [self._own(self.loss, x, U, Y) for x in np.moveaxis(X, 2, 0)]
            values, gradients = zip(*columns)
            return np.stack(values, axis=1), np.stack(gradients, axis=2)
        R = times(U, X) - Y[:, :, None]
        G = adjoint(U, R) / max(U.shape[1], 1)
        return (np.abs(R) ** 2).mean(axis=1) / 2, self._like(G, X)

    def _own(self, loss: Loss, X: Array, U: Array, Y: Array) -> tuple[NDArray[np.float64], Array]:
        values, G = np.zeros(len(U)), np.zeros((len(U), self.d), np.result_type(X, self.dtype))
        for i, x in enumerate(X):
            for u, y in zip(U[i], Y[i]):
                found = loss(x.copy(), u.copy(), y.copy())
                if not (isinstance(found, (tuple, list)) and len(found) == 2):
                    raise TypeError(
                        f"Stream: loss(x, u, y) returns a {type(found).__name__}, expected a pair: "
                        "the value and the gradient"
                    )
                value, g = found
                if np.shape(value) != () or np.shape(g) != (self.d,):
                    raise ValueError(
                        f"Stream: loss(x, u, y) returns shapes {np.shape(value)} and "
                        f"{np.shape(g)}, expected () and ({self.d},): the value and the gradient"
                    )
                values[i] += np.real(value)
                G[i] += g
        return values / U.shape[1], self._like(G / U.shape[1], X)

    @staticmethod
    def _like(G: Array, X: Array) -> Array:
        """Return the gradients of rows; complex ones of real rows are refused."""
        if np.iscomplexobj(G) and not np.iscomplexobj(X):
            raise TypeError(
                "Stream: draw returns complex samples, but the rows are real: pass a complex x0, "
                "such as x0=np.zeros(d, complex)"
            )
        return G


class Received:
    """The samples that agents receive in several runs, drawn block by block.

    Parameters
    ----------
    stream : Stream
    streams : sequence of Streams
        The random numbers of each run.
    """

    def __init__(self, stream: Stream, streams: Sequence[Streams]) -> None:
        self._stream, self._streams = stream, streams
        # Of an agent: the first step of its block, U (runs, block, d) and Y (runs, block, ...).
        self._blocks: dict[int, tuple[int, Array, Array]] = {}

    def __call__(self, agents: Sequence[int], k: int) -> tuple[Array, Array]:
        """Return the samples of step k, those of all runs of an agent one after the other: U,
        (agents * runs, 1, d), and Y, (agents * runs, 1, ...).
        """
        stream, at = self._stream, k % self._stream.block
        if stream.block == 1:
            found = [stream.drawn(draws, agent, k) for agent in agents for draws in self._streams]
        else:
            blocks = (self._block(agent, k - at) for agent in agents)
            found = [(U[:, at], Y[:, at]) for U, Y in blocks]
        if not found:
            return np.empty((0, 1, stream.d)), np.empty((0, 1))
        return stream.stacked(found, len(agents) * len(self._streams))

    def _block(self, agent: int, first: int) -> tuple[Array, Array]:
        known = self._blocks.get(agent)
        if known is None or known[0] != first:
            drawn = [self._stream.drawn(draws, agent, first) for draws in self._streams]
            known = self._blocks[agent] = first, *self._stream.stacked(drawn, len(drawn))
        return known[1:]
