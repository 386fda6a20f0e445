"""Steps of the local-view calls on one rank: see `checks.operation`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from ....exceptions import RankMismatchError
from ...arrays import flat_dtype, narrow, to_host, working
from ...checks import (
    ARRIVED,
    CONFIRMATION,
    DOWN,
    EDGE,
    FROM_LEADER,
    TO_LEADER,
    UP,
    Operation,
    Steps,
    Subject,
)
from ...kernels import Weights, weighted_sum
from .edges import RankEdges
from .flat import FlatArray, combine


def _finish_edges(
    operation: Operation, mode: str, sources: Iterable[int], dests: Iterable[int], confirm: bool
) -> Steps:
    """Wait for all that arrives along the edges: from `sources`, or (push) from whichever rank
    has sent.
    """
    if mode == "push":
        yield from operation.barrier()
        return
    operation.expect(EDGE, sources)
    if confirm:
        operation.expect(CONFIRMATION, dests)
    yield ARRIVED


def _mixed(
    edges: RankEdges, node: int, own: np.ndarray, arrived: dict[int, tuple[float, np.ndarray]]
) -> np.ndarray:
    """Return the weighted sum at a node, in the precision of the arithmetic."""
    if edges.plan is None:
        return combine(edges.terms(node, own, arrived), own)
    halo = (
        np.stack([array for _, (_, array) in sorted(arrived.items())]) if arrived else own[None][:0]
    )
    result: np.ndarray = weighted_sum(
        cast(Weights, edges.plan.weights), own[None], halo, np.empty_like(own[None])
    )[0]
    return result


def neighbor_allreduce(
    operation: Operation, x: FlatArray, edges: RankEdges, rank: int, confirm: bool
) -> Steps:
    """Steps of `neighbor_allreduce` and `pair_gossip`."""
    push = edges.mode == "push"
    for dest, weight in edges.dests.items():
        operation.send(dest, EDGE, x.flat, weight, confirm=confirm, synchronous=push)
    yield from _finish_edges(operation, edges.mode, edges.sources, edges.dests, confirm)
    arrived = {
        source: (
            operation.received[source, EDGE][0].weight,
            x.widen(operation.take(source, EDGE, x.flat.dtype)),
        )
        for source in operation.sources()
    }
    return x.restore(_mixed(edges, rank, x.values, arrived))


def neighbor_allgather(
    operation: Operation, x: FlatArray, edges: RankEdges, order: list[int] | None, confirm: bool
) -> Steps:
    """Steps of `neighbor_allgather`: arrays in the order of the ranks `order`, or ascending."""
    push = edges.mode == "push"
    for dest in edges.dests:
        operation.send(dest, EDGE, x.flat, confirm=confirm, synchronous=push)
    yield from _finish_edges(operation, edges.mode, edges.sources, edges.dests, confirm)
    order = operation.sources() if order is None else order
    rows = sum(operation.received[source, EDGE][0].subject.shape[0] for source in order)
    parts = [operation.take(source, EDGE, x.flat.dtype) for source in order]
    return x.restore_bits(np.concatenate([x.flat[:0], *parts]), (rows, *x.shape[1:]))


def exchange(
    operation: Operation, arrays: dict[int, FlatArray], edges: RankEdges, confirm: bool
) -> Steps:
    """Steps of `exchange`: what arrives is of the kind of what was sent there, or of the first
    array.
    """
    op, mode, signature, *_ = operation.subject
    for dest, array in sorted(arrays.items()):
        subject = Subject(op, mode, signature, array.dtype, array.shape)
        operation.send(dest, EDGE, array.flat, confirm=confirm, subject=subject)
    yield from _finish_edges(operation, edges.mode, edges.sources, edges.dests, confirm)
    first = next((array.make for _, array in sorted(arrays.items())), to_host(())[2])
    result: dict[int, Any] = {}
    for source in operation.sources():
        subject = operation.received[source, EDGE][0].subject
        bits = operation.take(source, EDGE, flat_dtype(subject.dtype)).reshape(subject.shape)
        result[source] = (arrays[source].make if source in arrays else first)(bits, subject.dtype)
    return result


def member(
    operation: Operation, x: FlatArray, leader: int, push: bool, fingerprint: float
) -> Steps:
    """Steps of `hierarchical_neighbor_allreduce` on a rank that is not its machine's leader."""
    operation.send(leader, TO_LEADER, x.flat, fingerprint)
    if push:
        yield from operation.barrier()
    operation.expect(FROM_LEADER, [leader])
    yield ARRIVED
    return x.restore_bits(operation.take(leader, FROM_LEADER, x.flat.dtype))


def leader(
    operation: Operation,
    x: FlatArray,
    edges: RankEdges,
    machine: int,
    members: list[int],
    leaders: list[int],
    fingerprint: float,
) -> Steps:
    """Steps of `hierarchical_neighbor_allreduce` on the lowest rank of a machine.

    The leader averages over its machine, mixes with the other leaders, and hands the result out.
    `fingerprint`, of the weights, must be the same on all ranks of the machine.
    """
    operation.expect(TO_LEADER, members)
    yield ARRIVED
    for rank in members:
        if operation.received[rank, TO_LEADER][0].weight != fingerprint:
            raise RankMismatchError(
                f"rank {rank} and rank {leaders[machine]} of machine {machine} give different "
                "weights in "
                f"{operation}, expected the same on all ranks of a machine"
            )
    shares = [(1.0, x.widen(operation.take(rank, TO_LEADER, x.flat.dtype))) for rank in members]
    average = combine([(1.0, x.values), *shares], x.values)
    average /= average.real.dtype.type(len(members) + 1)
    push = edges.mode == "push"
    for other, weight in edges.dests.items():
        operation.send(leaders[other], EDGE, average, weight, synchronous=push)
    yield from _finish_edges(
        operation, edges.mode, [leaders[other] for other in edges.sources], (), False
    )
    machine_of = {rank: other for other, rank in enumerate(leaders)}
    # In float64, so that the sum is rounded once.
    precise = np.result_type(average, np.float64)
    arrived = {
        machine_of[source]: (
            operation.received[source, EDGE][0].weight,
            operation.take(source, EDGE, working(x.dtype)).astype(precise, copy=False),
        )
        for source in operation.sources()
    }
    mixed = _mixed(edges, machine, average.astype(precise, copy=False), arrived)
    bits = narrow(mixed, x.dtype)
    for rank in members:
        operation.send(rank, FROM_LEADER, bits)
    return x.restore_bits(bits.copy())


def allreduce(operation: Operation, x: FlatArray, divisor: int) -> Steps:
    """Steps of `allreduce`: sums over consecutive ranks go up the tree, the result comes down."""
    parent, children = operation.tree
    precise = working(x.dtype)
    total = x.values.astype(precise, copy=True)
    operation.expect(UP, children)
    yield ARRIVED
    for child in children:
        total += operation.take(child, UP, precise)
    if parent is None:
        if divisor != 1:
            total /= total.real.dtype.type(divisor)
        bits = narrow(total, x.dtype)
    else:
        operation.send(parent, UP, total)
        operation.expect(DOWN, [parent])
        yield ARRIVED
        bits = operation.take(parent, DOWN, x.flat.dtype)
    for child in children:
        operation.send(child, DOWN, bits)
    return x.restore_bits(bits.copy())


def allgather(operation: Operation, x: FlatArray) -> Steps:
    """Steps of `allgather`: rows of consecutive ranks go up the tree, all rows come down."""
    parent, children = operation.tree
    op, mode, signature, dtype, (_, *shape) = operation.subject

    def of(rows: int) -> Subject:
        return Subject(op, mode, signature, dtype, (rows, *shape))

    operation.expect(UP, children)
    yield ARRIVED
    parts = [x.flat, *(operation.take(child, UP, x.flat.dtype) for child in children)]
    rows = x.shape[0] + sum(operation.received[child, UP][0].subject.shape[0] for child in children)
    bits = np.concatenate(parts)
    if parent is not None:
        operation.send(parent, UP, bits, subject=of(rows))
        operation.expect(DOWN, [parent])
        yield ARRIVED
        rows = operation.received[parent, DOWN][0].subject.shape[0]
        bits = operation.take(parent, DOWN, x.flat.dtype)
    for child in children:
        operation.send(child, DOWN, bits, subject=of(rows))
    return x.restore_bits(bits.copy(), (rows, *shape))


def broadcast(operation: Operation, x: FlatArray) -> Steps:
    """Steps of `broadcast`: down the tree of the root."""
    parent, children = operation.tree
    bits = x.flat
    if parent is not None:
        operation.expect(DOWN, [parent])
        yield ARRIVED
        bits = operation.take(parent, DOWN, x.flat.dtype)
    for child in children:
        operation.send(child, DOWN, bits)
    return x.restore_bits(bits.copy())
