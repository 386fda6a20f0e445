"""What one rank does in each kind of call: generators that send, say what they need, and yield until it is here."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from ...arrays.host import to_host
from ...checks.header import ACROSS, BACK, DOWN, IN, OK, UP, Disagreement, Script
from ...checks.operation import Call
from ...kernels.weighted import Weights, weighted_sum
from .edges import Edges
from .flat import Wire, combine, flat_dtype, narrow, widen, working


def _meet(call: Call, outgoing: dict[int, tuple[np.ndarray, float, Wire | None]], edges: Edges, confirm: bool,
          sources: list[int] | None = None) -> Script:
    """Send across, and wait for what comes across."""
    push = edges.mode == "push"
    for dest, (flat, weight, wire) in outgoing.items():
        call.send(dest, ACROSS, flat, weight, want=confirm, synchronous=push, wire=wire)
    if push:
        yield from call.consensus(*call.tree)
    else:
        call.expect(ACROSS, edges.sources if sources is None else sources)
        if confirm:
            call.expect(OK, outgoing)
        yield False


def _mixed(edges: Edges, me: int, own: np.ndarray, arrived: dict[int, tuple[float, np.ndarray]]) -> np.ndarray:
    """The weighted sum at node `me`, in the precision of the arithmetic."""
    if edges.plan is None:
        return combine(edges.terms(me, own, arrived), own)
    halo = np.stack([array for _, (_, array) in sorted(arrived.items())]) if arrived else own[None][:0]
    return weighted_sum(cast(Weights, edges.plan.weights), own[None], halo, np.empty_like(own[None]))[0]


def allreduce_along(call: Call, wire: Wire, edges: Edges, rank: int, confirm: bool) -> Script:
    """`neighbor_allreduce` and `pair_gossip`."""
    yield from _meet(call, {dest: (wire.flat, weight, None) for dest, weight in edges.dests.items()}, edges, confirm)
    arrived = {source: (call.received[source, ACROSS][0].weight, widen(call.take(source, ACROSS), wire.dtype))
               for source in call.across()}
    return wire.home(_mixed(edges, rank, wire.values, arrived))


def gather_along(call: Call, wire: Wire, edges: Edges, order: list[int] | None, confirm: bool) -> Script:
    """`neighbor_allgather`."""
    yield from _meet(call, dict.fromkeys(edges.dests, (wire.flat, 1.0, None)), edges, confirm)
    order = call.across() if order is None else order
    rows = sum(call.received[source, ACROSS][0].shape[0] for source in order)
    parts = [call.take(source, ACROSS) for source in order]
    return wire.home_bits(np.concatenate([wire.flat[:0], *parts]), (rows, *wire.shape[1:]))


def exchange(call: Call, wires: dict[int, Wire], edges: Edges, confirm: bool) -> Script:
    """`exchange`."""
    yield from _meet(call, {dest: (wire.flat, 1.0, wire) for dest, wire in sorted(wires.items())}, edges, confirm)
    first = next((wire.kind for _, wire in sorted(wires.items())), to_host(())[2])
    result: dict[int, Any] = {}
    for source in call.across():
        letter, flat = call.received[source, ACROSS][0], call.take(source, ACROSS)
        kind = wires[source].kind if source in wires else first
        result[source] = Wire(flat, letter.shape, letter.dtype, kind).home_bits(flat)
    return result


def member(call: Call, wire: Wire, leader: int, push: bool, opinion: float) -> Script:
    """`hierarchical_neighbor_allreduce` on a rank that does not speak for its machine."""
    call.send(leader, IN, wire.flat, opinion)
    if push:
        yield from call.consensus(*call.tree)
    call.expect(BACK, [leader])
    yield False
    return wire.home_bits(call.take(leader, BACK))


def leader(call: Call, wire: Wire, edges: Edges, me: int, ranks: list[int], leaders: list[int], opinion: float) -> Script:
    """`hierarchical_neighbor_allreduce` on the rank that speaks for machine `me`."""
    call.expect(IN, ranks[1:])
    yield False
    for rank in ranks[1:]:
        if call.received[rank, IN][0].weight != opinion:
            raise Disagreement(f"rank {rank} and rank {ranks[0]} of machine {me} give different weights in {call}, expected the "
                               "same on all ranks of a machine")
    total = combine([(1.0, wire.values), *((1.0, widen(call.take(rank, IN), wire.dtype)) for rank in ranks[1:])], wire.values)
    total /= total.real.dtype.type(len(ranks))
    yield from _meet(call, {leaders[machine]: (total, weight, None) for machine, weight in edges.dests.items()}, edges, False,
                     [leaders[machine] for machine in edges.sources])
    machine_of = {rank: machine for machine, rank in enumerate(leaders)}
    arrived = {machine_of[source]: (call.received[source, ACROSS][0].weight, call.take(source, ACROSS, working(wire.dtype)))
               for source in call.across()}
    flat = narrow(_mixed(edges, me, total, arrived), wire.dtype)
    for rank in ranks[1:]:
        call.send(rank, BACK, flat)
    return wire.home_bits(flat.copy())


def allreduce(call: Call, wire: Wire, divisor: int, parent: int | None, children: list[int]) -> Script:
    """`allreduce`: sums of neighbouring blocks of ranks go up the tree, the whole comes down."""
    precise = working(wire.dtype)
    total = wire.values.astype(precise, copy=True)
    call.expect(UP, children)
    yield False
    for child in children:
        total += call.take(child, UP, precise)
    if parent is None:
        if divisor != 1:
            total /= total.real.dtype.type(divisor)
        flat = narrow(total, wire.dtype)
    else:
        call.send(parent, UP, total)
        call.expect(DOWN, [parent])
        yield False
        flat = call.take(parent, DOWN)
    for child in children:
        call.send(child, DOWN, flat)
    return wire.home_bits(flat.copy())


def broadcast(call: Call, wire: Wire, parent: int | None, children: list[int]) -> Script:
    """`broadcast`: down the tree of the root."""
    flat = wire.flat
    if parent is not None:
        call.expect(DOWN, [parent])
        yield False
        flat = call.take(parent, DOWN).view(flat_dtype(wire.dtype))
    for child in children:
        call.send(child, DOWN, flat)
    return wire.home_bits(flat.copy())
