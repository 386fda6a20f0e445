"""Neural networks as problems: gradients of a PyTorch model at stacked rows of parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _validation as check
from .._validation import Array
from .._words import Described

if TYPE_CHECKING:
    import torch

LOSSES = ("cross_entropy", "mse")
DTYPES = ("float32", "float64")
Data = tuple[Sequence[ArrayLike], Sequence[ArrayLike]]


class Neural(Described):
    r"""Mean loss of a neural network over each agent's samples.

    .. math:: f_i(x) = \frac{1}{p_i} \sum_{s=1}^{p_i} \ell(h(a_{is}; x), y_{is}) + \frac{\lambda}{2} \|x\|^2

    A row of X has the trainable parameters of the network h, flattened in the order of
    ``model.parameters()``; frozen ones keep their values. All rows are evaluated and differentiated
    in one batched pass, or in a loop over the agents where that is faster (`mpidec.nn.Stacked`).

    Parameters
    ----------
    model : torch.nn.Module
        The network h, which maps (B, ...) to (B, classes); it is copied.
    data : (x, y)
        Samples and targets of the m local agents: ``x[i]`` of shape (p_i, ...) and ``y[i]`` of
        shape (p_i,), or arrays (m, p, ...) and (m, p). For "mse", targets have the shape of the
        outputs.
    loss : {"cross_entropy", "mse"} or callable
        :math:`\ell`; a function of outputs (N, ...) and targets (N, ...) returns one loss for each
        sample, (N,).
    l2 : float
        :math:`\lambda \ge 0`.
    chunk : int, optional
        Most samples of an agent in one pass, which limits the memory that full gradients and values
        need; all by default.
    dtype : {"float32", "float64"}, optional
        Precision of the network; by default that of the model. Values and gradients have the dtype
        of X.
    loop : bool, optional
        Whether agents are evaluated one after the other; see `mpidec.nn.Stacked`.

    Raises
    ------
    ValueError, TypeError
        If an argument is invalid.

    Notes
    -----
    Values and gradients are those of one function of the row: dropout is off, and batch norm
    normalises by the statistics of the samples of a pass, in predictions as well.

    With zeros for x0, most networks have zero gradients: start at `initial`. `MiniBatch(problem,
    B)` gives stochastic gradients.

    No communication. The results of an agent may depend on the other agents of the process by
    rounding errors.

    Examples
    --------
    >>> import mpidec, torch
    >>> from mpidec.nn import models
    >>> from mpidec.problems import MiniBatch, Neural
    >>> from mpidec.datasets.images import images, split
    >>> data = images("digits")
    >>> parts = split(data, 4, alpha=1.0)
    >>> problem = Neural(
    ...     models.make("mlp", data.shape, 10, hidden=[16]),
    ...     ([data.train_x[part] for part in parts], [data.train_y[part] for part in parts]),
    ... )
    >>> result = mpidec.solve(
    ...     MiniBatch(problem, 32),
    ...     mpidec.solvers.DGD(0.2),
    ...     mpidec.topology.ring(4),
    ...     steps=200,
    ...     x0=problem.initial(),
    ... )
    >>> bool(problem.accuracy(result.X, data.test_x, data.test_y).min() > 0.8)
    True
    """

    def __init__(
        self,
        model: torch.nn.Module,
        data: Data,
        *,
        loss: str | Callable[..., Any] = "cross_entropy",
        l2: float = 0.0,
        chunk: int | None = None,
        dtype: str | None = None,
        loop: bool | None = None,
    ) -> None:
        import torch

        from ..nn.internals import loops

        if not isinstance(model, torch.nn.Module):
            raise TypeError(
                f"model is a {type(model).__name__}, expected a torch.nn.Module, such as "
                "mpidec.nn.models.make('mlp', ...)"
            )
        self.model = copy.deepcopy(model).eval()
        torch.func.replace_all_batch_norm_modules_(self.model)
        if dtype is not None:
            self.model.to(getattr(torch, check.choice(dtype, "dtype", DTYPES)))
        trainable = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not trainable:
            raise ValueError(
                "the model has no parameters that require gradients, expected at least one"
            )
        self.loss = loss if callable(loss) else check.choice(loss, "loss", LOSSES)
        self.l2 = check.number(l2, "l2", least=0)
        self.chunk = None if chunk is None else check.integer(chunk, "chunk")
        self.loop = loops(model) if loop is None else loop
        self.dtype = next(iter(trainable.values())).dtype
        self.device = next(iter(trainable.values())).device
        self._shapes = {name: p.shape for name, p in trainable.items()}
        self._x, self._y, self.counts, self.mask = _stacked(*data, self.dtype, self.device)
        self.m, self.d = len(self.counts), sum(map(torch.Size.numel, self._shapes.values()))
        self.x_star: Array | None = None

    def _extent(self) -> dict[str, object]:
        return {"m": self.m, "d": self.d}

    def initial(self) -> Array:
        """Return the parameters of the model as a row, (d,), the initial point of every agent."""
        return np.concatenate(
            [
                p.detach().cpu().double().numpy().ravel()
                for p in self.model.parameters()
                if p.requires_grad
            ]
        )

    def load(self, x: Array) -> torch.nn.Module:
        """Return an ordinary model with the parameters of a row, (d,).

        Examples
        --------
        >>> import torch
        >>> problem = Neural(torch.nn.Linear(2, 1), ([np.ones((1, 2))], [np.ones((1, 1))]), loss="mse")
        >>> problem.load(np.array([1.0, 2.0, 3.0])).bias
        Parameter containing:
        tensor([3.], requires_grad=True)
        """
        import torch

        model = copy.deepcopy(self.model)
        with torch.no_grad():
            for p, row in zip(
                (p for p in model.parameters() if p.requires_grad),
                self._rows(np.asarray(x)[None]).values(),
            ):
                p.copy_(row[0])
        return model

    # -- values and gradients ----------------------------------------------------------------------

    def value(self, X: Array) -> Array:
        """Return f_i at row i, (m, d) -> (m,)."""
        import torch

        total = np.zeros(self.m, dtype=X.dtype)
        with torch.no_grad():
            tensors = self._rows(self._checked(X, self.m))
            for x, y, weight in self._passes(range(self.m)):
                total += (self._losses(tensors, x, y) * weight).sum(dim=1).cpu().numpy()
        return np.asarray(total + 0.5 * self.l2 * (X * X).sum(axis=1)) if self.l2 else total

    def grad(self, X: Array, agents: Sequence[int] | None = None) -> Array:
        """Return the gradient of f_i at row i, (m, d) -> (m, d); with `agents`, of these local
        agents, one row of X for each.
        """
        agents = range(self.m) if agents is None else agents
        self._checked(X, len(agents))
        return self._gradient(X, self._passes(agents))

    def sample_grad(
        self, X: Array, rows: NDArray[np.intp], weight: Array, agents: Sequence[int] | None = None
    ) -> Array:
        r"""Return a weighted gradient over selected samples, :math:`w_i \sum_{s \in S_i} \nabla
        \ell_s(x_i) / p_i + \lambda x_i`.

        Parameters
        ----------
        X : (m, d) array
            One point per local agent.
        rows : (m, B) array of int
            Sample numbers of each agent, in 0..p_i-1.
        weight : (m,) array
            Factor :math:`w_i`; with the number of samples of the agent divided by B, the mean over
            the batch.
        agents : sequence of int, optional
            The local agents that the rows of the other arguments belong to; by default all of them.
        """
        some = np.arange(self.m) if agents is None else np.asarray(agents)
        self._checked(X, len(some))
        at = self._tensor(some)[:, None], self._tensor(rows)
        factor = self._tensor(weight / self.counts[some]).to(self.dtype)[:, None]
        return self._gradient(X, [(self._x[at], self._y[at], factor)])

    def _gradient(
        self, X: Array, passes: Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    ) -> Array:
        """Return the sum of the gradients of passes (x, y, weights of the samples), and of the
        ridge.
        """
        import torch

        G = np.zeros_like(X)
        if len(X):
            tensors = {name: row.requires_grad_() for name, row in self._rows(X).items()}
            for x, y, weight in passes:
                total = (self._losses(tensors, x, y) * weight).sum()
                parts = torch.autograd.grad(
                    total, list(tensors.values()), allow_unused=True, materialize_grads=True
                )
                G += torch.cat([part.flatten(1) for part in parts], dim=1).cpu().numpy()
        return G + self.l2 * X if self.l2 else G

    def _losses(
        self, tensors: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss of each sample, (m, B)."""
        from torch.nn import functional as F

        outputs = self._outputs(tensors, x).flatten(0, 1)
        targets = y.flatten(0, 1)
        if callable(self.loss):
            losses = self.loss(outputs, targets)
        elif self.loss == "mse":
            if outputs.shape != targets.shape:
                raise ValueError(
                    f"the model returns outputs of shape {tuple(outputs.shape[1:])} for each "
                    "sample, expected "
                    f"that of the targets, {tuple(targets.shape[1:])}"
                )
            losses = F.mse_loss(outputs, targets, reduction="none").flatten(1).mean(dim=1)
        else:
            losses = F.cross_entropy(outputs, targets, reduction="none")
        if losses.shape != targets.shape[:1]:
            raise ValueError(
                f"the loss has shape {tuple(losses.shape)}, expected {tuple(targets.shape[:1])}: "
                "one number for each "
                "sample"
            )
        result: torch.Tensor = losses.view(y.shape[:2])
        return result

    def _outputs(self, tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        from ..nn.internals import evaluate

        return evaluate(self.model, {**self._fixed(len(x)), **tensors}, x, self.loop)

    def _fixed(self, m: int) -> dict[str, torch.Tensor]:
        """Return frozen parameters and buffers, the same for each of m agents."""
        named = (*self.model.named_parameters(), *self.model.named_buffers())
        return {
            name: tensor.detach().expand(m, *tensor.shape)
            for name, tensor in named
            if name not in self._shapes
        }

    def _rows(self, X: Array) -> dict[str, torch.Tensor]:
        """Return the parameters in rows X (m, d), by name, each with a leading dimension m."""
        sizes = [shape.numel() for shape in self._shapes.values()]
        parts = self._tensor(X).to(self.dtype).split(sizes, dim=1)
        return {
            name: part.view(len(X), *shape)
            for (name, shape), part in zip(self._shapes.items(), parts)
        }

    def _passes(self, agents: Sequence[int]) -> Any:
        """Yield samples, targets and weights of some agents, in chunks."""
        import torch

        some = slice(None) if len(agents) == self.m else self._tensor(np.asarray(agents))
        p = self._x.shape[1] if self.m else 0
        scale = torch.tensor(
            1 / self.counts[np.asarray(agents, dtype=np.intp)], dtype=self.dtype, device=self.device
        )[:, None]
        mask = (
            None
            if self.mask is None
            else self._tensor(self.mask[np.asarray(agents, dtype=np.intp)])
        )
        for lo in range(0, p, self.chunk or max(p, 1)):
            part = slice(lo, min(lo + (self.chunk or p), p))
            yield (
                self._x[some, part],
                self._y[some, part],
                scale if mask is None else scale * mask[:, part],
            )

    def _checked(self, X: Array, m: int) -> Array:
        if np.shape(X) != (m, self.d):
            raise ValueError(
                f"X has shape {np.shape(X)}, expected {(m, self.d)}: one row of {self.d} "
                "parameters per local agent"
            )
        return X

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        import torch

        # A copy: rows may be read-only, or change later.
        return torch.tensor(array, device=self.device)

    # -- predictions -------------------------------------------------------------------------------

    def predict(self, X: Array, images: ArrayLike, chunk: int = 500) -> NDArray[Any]:
        """Return the outputs of the network of every row of `X` (any number r of rows), (r, N,
        ...), `chunk` images at a time.
        """
        import torch

        X = np.atleast_2d(X)
        x = torch.as_tensor(np.asarray(images)).to(self.device, self.dtype)
        with torch.no_grad():
            tensors = self._rows(self._checked(X, len(X)))
            parts = [
                self._outputs(tensors, part.expand(len(X), *part.shape)) for part in x.split(chunk)
            ]
        return np.asarray(torch.cat(parts, dim=1).cpu().numpy())

    def accuracy(self, X: Array, images: ArrayLike, labels: ArrayLike, chunk: int = 500) -> Array:
        """Return the fraction of images whose label every row of `X` predicts, (r,)."""
        predicted = self.predict(X, images, chunk).argmax(axis=-1)
        return np.asarray((predicted == np.asarray(labels)).mean(axis=1), dtype=np.float64)

    # -- several processes -------------------------------------------------------------------------

    @classmethod
    def concatenate(cls, parts: Sequence[Neural]) -> Neural:
        """Return a single problem with the agents of all `parts`, in order (for example, parts
        from several ranks).
        """
        if not parts:
            raise ValueError("concatenate needs at least one problem")
        first = parts[0]
        for r, part in enumerate(parts):
            if (part.d, part.l2) != (first.d, first.l2):
                raise ValueError(
                    f"part {r} has {part.d} parameters and l2 = {part.l2}, expected {first.d} and "
                    f"{first.l2} as in "
                    "part 0"
                )
        x = [part._x[i, :p] for part in parts for i, p in enumerate(part.counts)]
        y = [part._y[i, :p] for part in parts for i, p in enumerate(part.counts)]
        return cls(
            first.model, (x, y), loss=first.loss, l2=first.l2, chunk=first.chunk, loop=first.loop
        )


def _check_samples(i: int, x: torch.Tensor, y: torch.Tensor) -> None:
    if not len(x) or len(x) != len(y):
        raise ValueError(
            f"local agent {i} has {len(x)} samples and {len(y)} targets, expected the same number "
            "of each, at least one"
        )
    if x.is_floating_point() and not bool(x.isfinite().all()):
        raise ValueError(f"the samples of local agent {i} hold NaN or inf, expected finite numbers")


def _stacked(
    x: Sequence[Any], y: Sequence[Any], dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, NDArray[np.intp], NDArray[np.bool_] | None]:
    """Return samples and targets as tensors (m, p, ...), padded to p = max p_i with samples of
    the same agent; the p_i; a mask.
    """
    import torch

    if len(x) != len(y):
        raise ValueError(
            f"data has samples of {len(x)} agents and targets of {len(y)}, expected the same "
            "number of each"
        )
    xs, ys = [torch.as_tensor(part) for part in x], [torch.as_tensor(part) for part in y]
    for i, pair in enumerate(zip(xs, ys)):
        _check_samples(i, *pair)
    counts = np.array([len(a) for a in xs], dtype=np.intp)
    if not xs:
        empty = torch.zeros((0, 0), dtype=dtype, device=device)
        return empty, empty, counts, None
    rows = torch.arange(int(counts.max()))
    samples, targets = (
        torch.stack([part[rows % len(part)] for part in parts]).to(device) for parts in (xs, ys)
    )
    samples = samples.to(dtype) if samples.is_floating_point() else samples  # integers are tokens
    targets = targets.to(dtype) if targets.is_floating_point() else targets.long()
    valid = np.arange(counts.max()) < counts[:, None]
    return samples, targets, counts, None if valid.all() else valid
