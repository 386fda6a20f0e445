"""Parameters as views of rows: what a torch optimizer updates is what `W` mixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

# Bytes: parameters begin at multiples in a row, those of a cache line.
_ALIGNMENT = 64


class Bucket:
    """Parameters of one dtype on one device, laid out in one row for each local agent.

    Parameters
    ----------
    named : sequence of (str, Parameter)
        In the order of the row.
    group : callable ()
        The group of the optimizer that they belong to, whose `lr` is read at each step: another
        dict once it has loaded a state.
    m : int
        Number of local agents.  The parameters of several agents are stacked: their first dimension
        is m.
    stacked : bool
        Whether they are, which makes a difference for m = 1.
    empty : callable (length, like) -> tensor (m, length)
        Makes uninitialized rows.

    Attributes
    ----------
    rows : tensor (m, d)
        The current values.  Between the parameters there are zeros, so that each begins at a
        multiple of 64 bytes.
    mixable : array or tensor (m, d)
        The same memory as `W` takes it with the fewest calls: of NumPy, where it has this dtype and
        memory.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, torch.Tensor]],
        group: Callable[[], dict[str, Any]],
        m: int,
        stacked: bool,
        empty: Callable[[int, torch.Tensor], torch.Tensor],
    ):
        self.named, self.group, self.m, self._stacked = list(named), group, m, stacked
        self._places: list[tuple[torch.Tensor, int, int]] = []
        self._versions: list[int] = []
        grain, end = _ALIGNMENT // named[0][1].element_size(), 0
        for _, parameter in named:
            size = parameter.numel() // (m if stacked else 1)
            self._places.append((parameter, end, end + size))
            end += -(-size // grain) * grain
        self.d = end
        starts = [a for _, a, _ in self._places[1:]] + [end]
        self._gaps = [(b, a) for (_, _, b), a in zip(self._places, starts) if b < a]
        rows = empty(end, named[0][1].data)
        rows.zero_()
        for view, parameter in zip(self._views(rows), (parameter for _, parameter in named)):
            view.copy_(parameter.data)
        self.show(rows)

    def _views(self, rows: torch.Tensor) -> list[torch.Tensor]:
        pieces = rows if self._stacked else rows[0]
        return [pieces[..., a:b].view(parameter.shape) for parameter, a, b in self._places]

    def parts(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Return the part of `rows` (m, d) that belongs to each parameter, with its shape for each
        agent: (m, ...).
        """
        return [view if self._stacked else view[None] for view in self._views(rows)]

    def pieces(self, columns: slice) -> Iterator[tuple[str, torch.Tensor, slice, slice]]:
        """The parameters that have some of the columns: name, parameter, which of its entries (of
        one agent), and which of the columns.
        """
        for (name, parameter), (_, a, b) in zip(self.named, self._places):
            first, last = max(a, columns.start), min(b, columns.stop)
            if first < last:
                start = columns.start
                yield (
                    name,
                    parameter,
                    slice(first - a, last - a),
                    slice(first - start, last - start),
                )

    def shape(self, parameter: torch.Tensor, rows: int) -> torch.Size:
        """Shape of the part of `rows` rows that belongs to a parameter: its own, if there is one
        row for each agent.
        """
        own = parameter.shape[1:] if self._stacked else parameter.shape
        return parameter.shape if rows == self.m else torch.Size([rows, *own])

    def show(self, rows: torch.Tensor) -> None:
        """Make the parameters views of `rows`."""
        self.rows = rows
        on_host = rows.device.type == "cpu" and rows.dtype != torch.bfloat16
        self.mixable = rows.numpy() if on_host else rows
        for (parameter, _, _), view in zip(self._places, self._views(rows)):
            parameter.data = view

    def settle(self, travelling: bool = False) -> None:
        """Copy the parameters whose memory has been replaced since, such as by
        `vector_to_parameters`, to the rows.

        Parameters
        ----------
        travelling : bool
            Whether the rows are on their way to the neighbours since `depart`, so that they must
            not change any more.

        Raises
        ------
        RuntimeError
            If the values have changed in rows that travel, or a parameter has another dtype or
            device than its row.
        """
        first, grain = self.rows.data_ptr(), self.rows.element_size()
        for parameter, a, b in self._places:
            if a == b or parameter.data_ptr() == first + a * grain:
                continue
            view = (self.rows[:, a:b] if self._stacked else self.rows[0, a:b]).view(parameter.shape)
            if (parameter.dtype, parameter.device) != (view.dtype, view.device):
                raise RuntimeError(
                    f"parameter {self.of(a)} is {parameter.dtype} on {parameter.device}, expected "
                    f"{view.dtype} on "
                    f"{view.device} as when it was wrapped: convert or move the model first"
                )
            if travelling and not torch.equal(parameter.data, view):
                raise self._changed(a)
            if not travelling:
                view.copy_(parameter.data)
            parameter.data = view
        for (parameter, a, _), version in zip(self._places, self._versions) if travelling else ():
            if parameter._version != version:
                raise self._changed(a)

    def depart(self) -> None:
        """Note that the rows travel from now on."""
        self._versions = [parameter._version for parameter, _, _ in self._places]

    def _changed(self, column: int) -> Exception:
        return RuntimeError(
            f"parameter {self.of(column)} was changed between two steps, when its row is already "
            "on its way to the "
            'neighbours, which "awc" does not allow: use another algorithm, such as "atc"'
        )

    def gradients(self, rows: torch.Tensor) -> None:
        """Copy the gradients to `rows` (m, d); zeros where there is none."""
        for (parameter, _, _), view in zip(self._places, self._views(rows)):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(
                    parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                )
        for a, b in self._gaps:
            rows[:, a:b].zero_()

    def versions(self) -> list[tuple[torch.Tensor | None, int]]:
        """The gradients, and how often each has been changed in place."""
        given = [parameter.grad for parameter, _, _ in self._places]
        return [(grad, 0 if grad is None else grad._version) for grad in given]

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters, in the order of the row."""
        return [parameter for parameter, _, _ in self._places]

    def used(self) -> torch.Tensor:
        """For each parameter 1 if it has a gradient, and 0 if not."""
        return torch.tensor([float(parameter.grad is not None) for parameter, _, _ in self._places])

    def set_gradients(self, rows: torch.Tensor, used: torch.Tensor) -> None:
        """Make the gradients views of `rows`; none where `used` is 0."""
        self._given = [
            view if uses else None for view, uses in zip(self._views(rows), used.tolist())
        ]
        for (parameter, _, _), view in zip(self._places, self._given):
            parameter.grad = view

    def has_gradients(self) -> bool:
        """Return whether the gradients are still those of `set_gradients`, which may have been
        changed in place.
        """
        return all(
            parameter.grad is view for (parameter, _, _), view in zip(self._places, self._given)
        )

    def of(self, column: int) -> str:
        """Name of the parameter that a column belongs to."""
        return [name for (name, _), (_, a, _) in zip(self.named, self._places) if a <= column][-1]

    @property
    def count(self) -> int:
        """Number of parameters."""
        return len(self._places)

    @property
    def lr(self) -> float:
        """Learning rate of the group."""
        return float(self.group()["lr"])

    @property
    def bytes(self) -> int:
        """Size of the rows."""
        return int(self.rows.numel()) * int(self.rows.element_size())


def buckets(
    groups: Callable[[], list[dict[str, Any]]],
    names: dict[int, str],
    m: int,
    stacked: bool,
    most: int,
    empty: Callable[[int, torch.Tensor], torch.Tensor],
) -> list[Bucket]:
    """Lay the parameters of an optimizer's groups out in buckets of at most `most` bytes, where one
    parameter is not larger.

    Parameters come in the reverse of their order in the groups, which is about that of their
    gradients.
    """
    made = []
    for g, parameters_of in enumerate(groups()):
        kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        # In reverse, as `backward` computes the gradients of the last layers first: their bucket
        # can be sent while the others are computed.
        for parameter in reversed(parameters_of["params"]):
            if parameter.requires_grad and parameter.numel():
                kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)

        def group(g: int = g) -> dict[str, Any]:
            return groups()[g]

        for parameters in kinds.values():
            some: list[torch.Tensor] = []
            size = 0
            for parameter in parameters:
                bytes = parameter.numel() * parameter.element_size() // (m if stacked else 1)
                if some and size + bytes > most:
                    made.append(Bucket([(names[id(p)], p) for p in some], group, m, stacked, empty))
                    some, size = [], 0
                some.append(parameter)
                size += bytes
            made.append(Bucket([(names[id(p)], p) for p in some], group, m, stacked, empty))
    return made


def refuse_infinite(
    first: int, bucket: Bucket, rows: torch.Tensor, step: int, what: str = "parameter"
) -> None:
    """Raise a `ValueError` if `rows`, of the workers from `first` on, are not finite."""
    if bool(torch.isfinite(rows.sum())):
        return
    wrong = (~torch.isfinite(rows)).nonzero()
    # Large numbers may have an infinite sum.
    if len(wrong):
        row, column = wrong[0].tolist()
        raise ValueError(
            f"worker {first + row}, step {step}: {what} {bucket.of(column)} is "
            f"{float(rows[row, column])}: lower the learning rate, clip the gradients, or look at "
            "this worker's data (check=False goes on)"
        )
