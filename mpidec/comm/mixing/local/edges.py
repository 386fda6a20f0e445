"""Edges of one local-view call: who sends to whom with which weights, from the arguments,
checked.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, SupportsFloat, SupportsIndex

import numpy as np

from .... import _validation as check
from ...transport import Routes

Nodes = Mapping[int, float] | Iterable[int] | None  # with their weights, or each with weight 1
Weight = SupportsFloat | None


class RankEdges(NamedTuple):
    """The edges of one call at one node of the graph (a rank, or a machine).

    Attributes
    ----------
    mode : {"static", "dynamic", "push"}
        Along the topology that was set; as both sides say; or as the senders say.
    sources : tuple of int
        Nodes that send to this one, ascending; empty in push mode, where only the senders know.
    dests : dict {node: weight}
        The factors of this node's array on the way to others.
    own : float
        The factor of this node's own array.
    weights : dict {node: weight} or None
        The factors of the arrays that arrive; None for 1.
    plan : Plan or None
        The topology, if its own weights are used.
    """

    mode: str
    sources: tuple[int, ...]
    dests: dict[int, float]
    own: float = 0.0
    weights: dict[int, float] | None = None
    plan: Routes | None = None

    @classmethod
    def of(
        cls,
        plan: Routes | None,
        me: int,
        size: int,
        self_weight: Weight,
        src: Nodes,
        dst: Nodes,
        names: tuple[str, str],
        kind: str = "rank",
    ) -> RankEdges:
        """From the arguments of a call.

        Raises
        ------
        ValueError, TypeError
            Naming the argument and the remedy.
        """
        src_name, dst_name = names
        given = (self_weight is not None, src is not None, dst is not None)
        if given not in (
            (False, False, False),
            (True, True, False),
            (True, False, True),
            (True, True, True),
        ):
            have = [name for name, there in zip(("self_weight", *names), given) if there]
            raise ValueError(
                f"only {' and '.join(have)} given, expected self_weight with {src_name} (pull), "
                f"with {dst_name} "
                "(push), with both (push-pull), or nothing (the topology's weights)"
            )
        own = number(self_weight, "self_weight") if given[0] else 0.0
        return cls.lists(plan, me, size, src=src, dst=dst, names=names, own=own, kind=kind)

    @classmethod
    def static(
        cls,
        plan: Routes | None,
        weights: dict[int, float] | None,
        own: float,
        src_name: str,
        kind: str,
    ) -> RankEdges:
        """Along the topology that was set; pulled with `weights`, or mixed with its own."""
        if plan is None:
            setter = "set_topology" if kind == "rank" else "set_machine_topology"
            raise ValueError(
                f"no topology is set for the {kind}s: call net.{setter}(topology), or give all "
                "weights"
            )
        route = plan.halo_route
        sources, dests = tuple(route.sources.tolist()), dict.fromkeys(route.dests.tolist(), 1.0)
        if weights is not None and not weights.keys() <= set(sources):
            strangers = sorted(set(weights) - set(sources))
            raise ValueError(
                f"{src_name} names {kind} {strangers[0]}, which does not send to {kind} "
                f"{plan.rank} in the "
                f"{plan.topology.name} topology ({kind}s {list(sources)} do): add "
                f"{src_name.replace('src', 'dst')} "
                "on both sides"
            )
        return cls("static", sources, dests, own, weights, plan if weights is None else None)

    @classmethod
    def lists(
        cls,
        plan: Routes | None,
        me: int,
        size: int,
        src: Nodes,
        dst: Nodes,
        names: tuple[str, str],
        own: float = 0.0,
        kind: str = "rank",
    ) -> RankEdges:
        """From lists of nodes, or their weights, and the weight of this one."""
        weights = None if src is None else weighted(src, names[0], me, size, kind)
        if dst is None:
            return cls.static(plan, weights, own, names[0], kind)
        return cls(
            "push" if weights is None else "dynamic",
            tuple(weights or ()),
            weighted(dst, names[1], me, size, kind),
            own,
            weights,
        )

    def terms(
        self, me: int, own: np.ndarray, arrived: dict[int, tuple[float, np.ndarray]]
    ) -> list[tuple[float, np.ndarray]]:
        """`(weight, array)` of the sum at this node, in ascending order of the nodes."""
        weights = self.weights
        terms = [
            (node, (1.0 if weights is None else weights[node]) * weight, array)
            for node, (weight, array) in arrived.items()
            if weights is None or node in weights
        ]
        terms.append((me, self.own, own))
        terms.sort(key=operator.itemgetter(0))
        return [(weight, array) for _, weight, array in terms]


def repeatable(given: Nodes) -> Nodes:
    """Return the argument; as a list, if it can be iterated over only once."""
    return list(given) if isinstance(given, Iterator) else given


def weighted(given: Nodes, what: str, me: int, size: int, kind: str = "rank") -> dict[int, float]:
    """`{node: weight}`, ascending, from a dict, or from a list of nodes, which then have weight
    1.
    """
    if type(given) is not dict and (
        isinstance(given, (str, bytes)) or not isinstance(given, (Mapping, Iterable))
    ):
        raise TypeError(
            f"{what} is {given!r}, expected a dict {{{kind}: weight}} or a list of {kind}s"
        )
    pairs = given.items() if isinstance(given, (dict, Mapping)) else [(node, 1.0) for node in given]
    result = {}
    for key, weight in pairs:
        node = key if type(key) is int and 0 <= key < size else index(key, what, size, kind)
        if node == me:
            raise ValueError(
                f"{what} names {kind} {node} itself: its own array is weighted by self_weight"
            )
        if node in result:
            raise ValueError(f"{what} names {kind} {node} twice, expected each {kind} once")
        result[node] = (
            weight
            if type(weight) is float and math.isfinite(weight)
            else number(weight, what, node)
        )
    return dict(sorted(result.items()))


def index(key: SupportsIndex, what: str, size: int, kind: str = "rank") -> int:
    """Return a node's number, checked."""
    try:
        node = operator.index(key)
    except TypeError:
        raise TypeError(
            f"{what} names {key!r}, expected a {kind}: a whole number from 0 to {size - 1}"
        ) from None
    if isinstance(key, (bool, np.bool_)) or not 0 <= node < size:
        raise ValueError(f"{what} names {kind} {key}, expected one from 0 to {size - 1}")
    return node


def number(weight: object, what: str, node: int | None = None) -> float:
    """Return a weight (of a node) as a float, checked."""
    with contextlib.suppress(TypeError, ValueError):
        weight = float(weight)  # type: ignore[arg-type]  # also of tensors and strings
    return check.number(weight, what if node is None else f"{what}[{node}]")


def valid_nodes(given: object, size: int) -> set[int]:
    """Return the valid nodes in an argument that may contain errors."""
    if isinstance(given, (str, bytes)) or not isinstance(given, (Mapping, Iterable)):
        return set()
    return {int(node) for node in given if isinstance(node, (int, np.integer)) and 0 <= node < size}
