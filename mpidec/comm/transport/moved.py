"""Messages of the rows that have moved: of variable length, with a flag for each row before them."""

from __future__ import annotations

import numpy as np

from ..arrays import row_bytes
from ..runtime import Pending
from .halo import HaloExchange, Kind
from .plan import Route, Routes


def start_moved(
    exchange: HaloExchange,
    plan: Routes,
    rows: np.ndarray,
    moved: np.ndarray,
    halo: np.ndarray,
    kind: Kind,
) -> Pending:
    """Begin to send those rows that have moved to the ranks that read them; `wait()` returns the
    halo, with what has arrived.

    Parameters
    ----------
    exchange : HaloExchange
    plan : Routes
        Its messages are point to point: a receive takes a message that is shorter than expected.
    rows : array (m, d), C-contiguous
    moved : array (m,) of bool
    halo : array (places, d), C-contiguous
    kind
        See `HaloExchange.start`.
    """
    route, nbytes = plan.halo_route, row_bytes(rows)
    order = np.arange(len(rows)) if route.send is None else route.send
    messages = [_message(rows, moved, order[start:stop]) for _, start, stop in route.leaving]
    sent = np.concatenate([np.empty(0, np.uint8), *messages])
    sizes, most = np.array([*map(len, messages)], np.int64), route.recv_counts * (1 + nbytes)
    begin, arrived = np.cumsum(most) - most, np.empty(int(most.sum()), np.uint8)
    starts = np.cumsum(sizes) - sizes
    of_bytes = Route(None, route.dests, sizes, starts, route.sources, most, begin, None)
    request = exchange.start(plan, of_bytes, sent, arrived, kind)

    def finish() -> np.ndarray:
        for (_, start, stop), first in zip(route.arriving, begin.tolist()):
            body = first + stop - start
            came = arrived[first:body].view(bool)
            count = int(came.sum())
            news = arrived[body : body + nbytes * count].view(rows.dtype)
            halo[start:stop][came] = news.reshape(count, rows.shape[1])
        return halo

    return Pending(request, finish)


def _message(rows: np.ndarray, moved: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the flags of the rows at `places`, then those rows that have moved, as bytes."""
    flags = moved[places]
    return np.concatenate([flags.view(np.uint8), rows[places[flags]].reshape(-1).view(np.uint8)])
