"""States in the shape of torch's: what an algorithm remembers lies per parameter in `state`, beside
that of the optimizer, and its numbers lie in `param_groups`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from ..comm.mixing.internals import Compressed
from .methods import Method, Mixer
from .rows import Bucket

State = Mapping[str, Any]
KEY = "mpidec"  # of the numbers in a group
PREFIX = f"{KEY}."  # of the names of rows in `state`
OTHERWISE = (
    "save the model in the context of consensus() and optimizer.optimizer.state_dict(), with which "
    "any algorithm begins anew on any number of workers"
)
# Names of what a mixer remembers of the calls of a step: prefix, call, entries and dtype of a row.
_CALL = re.compile(r"(.*_)?(\d+)_\d+_\w")
# As saved with a mixing of the method: prefix, and the call among those of this mixing.
_OWN_CALL = re.compile(r"(.*_)?(\d+)")


class StatePart:
    """What is remembered of columns of a bucket.

    Parameters
    ----------
    bucket : Bucket
    columns : slice
    like : str
        Parts of other buckets that are like it have the same numbers.
    memory : dict
        Rows and numbers by name.

    Attributes
    ----------
    rows : dict
        Views (any, columns) of the tensors that have an entry per column.
    numbers : dict
        All other values; of rows what follows the columns, such as counts.
    """

    def __init__(self, bucket: Bucket, columns: slice, like: str, memory: State):
        self.bucket, self.columns, self.like = bucket, columns, like
        self.width = int(columns.stop - columns.start)
        self.remember(memory)

    def remember(self, memory: State) -> None:
        """Take the rows and numbers."""
        self.memory, self.numbers = dict(memory), dict(memory)
        self.rows: dict[str, torch.Tensor] = {}
        for name, value in memory.items():
            if not isinstance(value, torch.Tensor) or not value.numel():
                continue
            if value.ndim > 1 and value.shape[-1] >= self.width:
                self.memory[name] = whole = value.contiguous()
                entries = whole.view(-1, whole.shape[-1])
                self.rows[name] = entries[:, : self.width]
                self.numbers[name] = entries[:, self.width :]

    def empty(self, tail: int) -> torch.Tensor:
        """Return zeros as a mixer remembers of rows with so many entries after the columns."""
        kind = torch.float64 if self.bucket.rows.dtype == torch.float64 else torch.float32
        return torch.zeros(self.bucket.m, self.width + tail, dtype=kind)

    def saved(self) -> dict[str, Any]:
        """The numbers, without tensors."""
        numbers = {
            name: value.tolist() if isinstance(value, torch.Tensor) else value
            for name, value in self.numbers.items()
        }
        return {"width": self.width, "like": self.like, "numbers": numbers}

    def recall(self, numbers: State) -> None:
        """Replace the numbers by those that were saved."""
        if self.numbers.keys() != numbers.keys():
            raise ValueError(
                f"the saved state is of {', '.join(numbers) or 'nothing'}, expected "
                f"{', '.join(self.numbers) or 'nothing'}: it belongs to another algorithm, or to "
                "other options of it"
            )
        for name, value in self.numbers.items():
            if isinstance(value, torch.Tensor):
                value.copy_(torch.tensor(numbers[name], dtype=value.dtype).view(value.shape))
            else:
                self.memory[name] = numbers[name]


class States:
    """The memory of an algorithm as a state in torch's shape, and the reverse.

    Rows are cut to the parameters: `state[i]["mpidec.<name>"]` has the shape of parameter i; rows
    of several edges or agents come first.  Numbers are in `param_groups[g]["mpidec"]["parts"]`, in
    the order of the group's buckets.

    Parameters
    ----------
    groups : callable ()
        The groups of the optimizer.
    method : Method
    mixers : list of mixers
    """

    def __init__(
        self,
        groups: Callable[[], Sequence[State]],
        method: Method,
        mixers: Sequence[Mixer],
    ):
        self._groups, self._method, self._mixers = groups, method, mixers

    def save(self, settings: State) -> dict[str, Any]:
        """Return the state, with the `settings` in each group.  Collective."""
        groups, parts = self._groups(), self._kept()
        parts += [part for _, some in self._mixed() for part in some]
        number = {id(p): i for i, p in enumerate(_parameters(groups))}
        state: dict[int, dict[str, torch.Tensor]] = {}
        for part, name, rows, most in _rows(parts):
            for _, p, inside, columns in part.bucket.pieces(part.columns):
                held = state.setdefault(number[id(p)], {})
                empty = rows.new_zeros(part.bucket.shape(p, most))
                whole = held.setdefault(PREFIX + name, empty).view(most, -1)
                whole[: len(rows), inside] = rows[:, columns]
        packed: list[dict[str, Any]] = []
        for group in groups:
            own = tuple(part.saved() for part in parts if part.bucket.group() is group)
            ids = [number[id(p)] for p in group["params"]]
            packed.append({"params": ids, KEY: {**settings, "parts": own}})
        return {"state": state, "param_groups": packed}

    def load(self, state_dict: State) -> None:
        """Continue with what `save` has returned, perhaps with other buckets.  Collective.

        Raises
        ------
        ValueError
            If it belongs to another model, algorithm or topology.
        """
        groups, saved = self._groups(), state_dict["param_groups"]
        held = _by_parameter(groups, saved, state_dict["state"])
        kept, mixed = self._kept(), self._mixed()
        of_mixers = [part for _, some in mixed for part in some]
        numbers: dict[StatePart, State] = {}
        for group, theirs in zip(groups, saved):
            mine = [part for part in (*kept, *of_mixers) if part.bucket.group() is group]
            numbers |= zip(mine, _matched(mine, theirs[KEY]["parts"]))
        for part in of_mixers:
            part.remember(_expected(part, numbers[part]))
        for part, name, rows, most in _rows([*kept, *of_mixers]):
            for called, p, inside, columns in part.bucket.pieces(part.columns):
                given = _saved(held[id(p)], name, called, part.bucket.shape(p, most))
                rows[:, columns] = given.reshape(most, -1)[: len(rows), inside]
        for part, theirs in numbers.items():
            part.recall(theirs)
        self._method.complete()
        self._method.load([part.memory for part in kept])
        for mixer, some in mixed:
            _recall(mixer, some)

    def forget(self) -> None:
        """Let the mixers begin anew.  Collective."""
        for mixer in self._mixers:
            mixer.recall({})

    def _kept(self) -> list[StatePart]:
        """What the method remembers."""
        return [
            StatePart(bucket, columns, str(self._mixers.index(mixer)), memory)
            for (bucket, columns, mixer), memory in zip(self._method.parts(), self._method.state())
        ]

    def _mixed(self) -> list[tuple[Mixer, list[StatePart]]]:
        """What mixers with error feedback remember of their mixings."""
        mixed = []
        for i, mixer in enumerate(self._mixers):
            if not mixer.feedback:
                continue
            mixings = [each for each in self._method.mixings() if each[-1] is mixer]
            parts = [
                StatePart(bucket, columns, f"{name}{i}", {}) for name, bucket, columns, _ in mixings
            ]
            _read(mixer, parts)
            mixed.append((mixer, parts))
        return mixed


def _parameters(groups: Sequence[State]) -> list[Any]:
    """The parameters of groups, or their keys in a state."""
    return list(chain.from_iterable(group["params"] for group in groups))


def _rows(parts: Sequence[StatePart]) -> Iterator[tuple[StatePart, str, torch.Tensor, int]]:
    """The rows of all parts by name; and the most of this name and bucket, as topologies that
    divide the columns may have different numbers of edges.
    """
    most: dict[tuple[Bucket, str], int] = {}
    named = [(part, name, rows) for part in parts for name, rows in part.rows.items()]
    for part, name, rows in named:
        most[part.bucket, name] = max(len(rows), most.get((part.bucket, name), 0))
    for part, name, rows in named:
        yield part, name, rows, most[part.bucket, name]


def _by_parameter(
    groups: Sequence[State], saved: Sequence[State], state: State
) -> dict[int, State]:
    """Return what a saved state holds of each parameter, by its id."""
    counts, own = ([len(group["params"]) for group in each] for each in (saved, groups))
    if counts != own:
        raise ValueError(
            f"the saved state has groups of {counts} parameters, expected {own}: it belongs to "
            "another model"
        )
    keys = zip(_parameters(groups), _parameters(saved))
    return {id(p): state.get(key, {}) for p, key in keys}


def _saved(held: State, name: str, parameter: str, shape: Sequence[int]) -> torch.Tensor:
    """Return the saved rows of a parameter, which has so many."""
    if PREFIX + name not in held:
        raise ValueError(
            f"the saved state has no {PREFIX + name} of parameter {parameter}: it belongs to "
            "another model or algorithm, or was loaded into a state_dict() without it: "
            "torch.distributed.checkpoint loads only what is there, so take a step before"
        )
    rows: torch.Tensor = held[PREFIX + name]
    if rows.shape != shape:
        raise ValueError(
            f"the saved {name} of parameter {parameter} has shape {tuple(rows.shape)}, expected "
            f"{tuple(shape)}: it belongs to another model, or to another topology"
        )
    return rows


def _matched(parts: Sequence[StatePart], saved: Sequence[State]) -> list[State]:
    """Return the numbers of the parts of a group; of buckets of other sizes, if they are equal in
    all of them.
    """
    if [(each["width"], each["like"]) for each in saved] == [(p.width, p.like) for p in parts]:
        return [each["numbers"] for each in saved]
    if {each["like"] for each in saved} != {part.like for part in parts}:
        raise ValueError(
            "the saved state is of other topologies, or of another mixing=: pass those with which "
            "it was saved"
        )
    matched = []
    for part in parts:
        alike = [each["numbers"] for each in saved if each["like"] == part.like]
        if any(numbers != alike[0] for numbers in alike):
            raise ValueError(
                "the saved state has other numbers for each bucket, of "
                f"{[each['width'] for each in saved]} entries, expected buckets of "
                f"{[each.width for each in parts]}: pass the bucket_bytes with which it was saved"
            )
        matched.append(alike[0])
    return matched


def _read(mixer: Mixer, parts: Sequence[StatePart]) -> None:
    """Let the parts, in the order of a step's mixings, remember what the mixer does."""
    memory = mixer.memory()
    if not memory and mixer.feedback and isinstance(mixer, Compressed):
        # as it begins: what is loaded by torch.distributed.checkpoint must be there before
        for call, part in enumerate(parts):
            rows = part.empty(0).numpy()
            memory[f"{call}_{part.width}_{rows.dtype.char}"] = rows
    calls = {name: _CALL.fullmatch(name) for name in memory}
    count = 1 + max((int(match[2]) for match in calls.values() if match), default=-1)
    often = max(1, -(-count // max(1, len(parts))))
    held: list[dict[str, torch.Tensor]] = [{} for _ in parts]
    for name, match in calls.items():
        place, again = divmod(int(match[2]), often) if match else (0, 0)
        own = f"{match[1] or ''}{again}" if match else name
        held[place][f"{parts[place].like}.{own}"] = torch.from_numpy(memory[name].copy())
    for part, each in zip(parts, held):
        part.remember(each)


def _recall(mixer: Mixer, parts: Sequence[StatePart]) -> None:
    """Let the mixer remember what the parts do."""
    named = [
        (place, name.partition(".")[2], rows.numpy())
        for place, part in enumerate(parts)
        for name, rows in part.memory.items()
    ]
    calls = [_OWN_CALL.fullmatch(name) for _, name, _ in named]
    often = 1 + max((int(match[2]) for match in calls if match), default=0)
    memory = {}
    for (place, name, rows), match in zip(named, calls):
        if match:
            call = place * often + int(match[2])
            name = f"{match[1] or ''}{call}_{rows.shape[1]}_{rows.dtype.char}"
        memory[name] = rows
    mixer.recall(memory)


def _expected(part: StatePart, numbers: State) -> dict[str, torch.Tensor]:
    """Return memory for what a mixer is to recall."""
    expected = {}
    for name, value in numbers.items():
        expected[name] = torch.tensor(value, dtype=torch.float64)
        if _OWN_CALL.fullmatch(name.partition(".")[2]):
            expected[name] = part.empty(expected[name].shape[-1])
    return expected


def settings_of(state_dict: State) -> State | None:
    """Return what `States.save` was given beside; None in the state of a plain optimizer."""
    if "param_groups" not in state_dict:
        raise ValueError(
            f"the saved state has {', '.join(map(repr, state_dict))}, expected 'state' and "
            "'param_groups': earlier versions of mpidec saved 'optimizer' and 'averager', of which "
            "load_state_dict(saved['optimizer']) continues the optimizer and begins the algorithm "
            "anew"
        )
    settings: State | None = state_dict["param_groups"][0].get(KEY)
    return settings


def merged(plain: State, own: State) -> dict[str, Any]:
    """Return the state of an optimizer with that of an algorithm."""
    state = {
        key: {**plain["state"].get(key, {}), **own["state"].get(key, {})}
        for key in [*plain["state"], *(key for key in own["state"] if key not in plain["state"])]
    }
    groups = [
        {**group, KEY: each[KEY]} for group, each in zip(plain["param_groups"], own["param_groups"])
    ]
    return {**plain, "state": state, "param_groups": groups}


def plain_state(state_dict: State) -> dict[str, Any]:
    """Return the state of the optimizer without that of the algorithm."""
    kept = {
        key: {name: value for name, value in held.items() if not str(name).startswith(PREFIX)}
        for key, held in state_dict["state"].items()
    }
    groups = [
        {name: value for name, value in group.items() if name != KEY}
        for group in state_dict["param_groups"]
    ]
    state = {key: held for key, held in kept.items() if held}
    return {**state_dict, "state": state, "param_groups": groups}


def remove_memory(optimizer: torch.optim.Optimizer) -> None:
    """Remove what a plain optimizer has loaded of an algorithm's memory."""
    for group in optimizer.param_groups:
        group.pop(KEY, None)
    for held in optimizer.state.values():
        for name in [name for name in held if str(name).startswith(PREFIX)]:
            del held[name]
