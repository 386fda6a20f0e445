"""Measured beside predicted times of mixings and all-reduce, over sizes and graphs, from a checkout:

mpirun -n 8 -ppn 2 python -m benchmarks.predicted network.json --sizes 1024,65536,524288 --cells cells.jsonl
python -m benchmarks.predicted network.json --cells cells.jsonl

`network.json` is written by ``mpidec bench --calibrate``, in a job of its own.  Cells of several jobs, on other numbers of
nodes and of ranks on each, are added to the same file; without --sizes they are only compared with the prediction.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mpidec import topology
from mpidec.comm.runtime import MPI
from mpidec.predict.checking import compared, nodes_of_job
from mpidec.predict.cluster import Cluster, cluster
from mpidec.predict.model import mean_cost
from mpidec.topology import Schedule, Topology

GRAPHS: dict[str, Callable[[int], Topology | Schedule]] = {
    name: topology.CATALOGUE[name]
    for name in ("ring", "grid", "exponential", "one_peer_exponential", "star")
}
WITHIN = 0.25


def graphs(node: np.ndarray) -> dict[str, Topology | Schedule]:
    """Return the graphs that agents on these nodes, one a rank, can have."""
    n, block = len(node), int(np.bincount(node).max())
    found = {name: make(n) for name, make in GRAPHS.items()}
    if 2 < block < n and n % block == 0:
        found["inner_outer"] = topology.inner_outer(n, block)
    if n > 2:
        found["erdos_renyi"] = topology.erdos_renyi(n, 0.5, seed=n)  # as one of a file
    return found


def measured(
    sizes: list[int], seconds: float, net: Cluster, comm: MPI.Intracomm
) -> Iterator[dict[str, object]]:
    """Yield the times of mixings and all-reduce, until the time is over; collective."""
    node, begin = nodes_of_job(comm), time.monotonic()
    for size in sizes:
        if comm.bcast(time.monotonic() - begin > seconds):
            return
        for name, took, _ in compared(graphs(node), size, size, node, net, comm):
            yield {
                "graph": name,
                "node": node.tolist(),
                "size": size,
                "seconds": took,
                "load": os.getloadavg()[0],
            }


def predicted(cell: dict[str, Any], net: Cluster) -> float:
    """Return the seconds of a cell by the model."""
    node = np.array(cell["node"])
    if cell["graph"] == "all-reduce":
        nodes = int(node.max()) + 1
        return net.allreduce(nodes, -(-len(node) // nodes), cell["size"])
    return mean_cost(graphs(node)[cell["graph"]], node, cell["size"], net).seconds


def summary(cells: list[dict[str, Any]], net: Cluster) -> str:
    """Return the cells beyond 25 %, and how many are within, by graph, nodes and size."""
    groups, lines = defaultdict(list), []
    for cell in cells:
        ratio = predicted(cell, net) / cell["seconds"]
        nodes = max(cell["node"]) + 1
        place = f"{nodes} x {len(cell['node']) // nodes} ranks"
        if abs(ratio - 1) > WITHIN:
            lines.append(
                f"{cell['graph']}, {place}, {cell['size']} B: {1e3 * cell['seconds']:.3g} ms, predicted/measured {ratio:.2f}"
            )
        for group in (cell["graph"], place, f"{cell['size']} B", "all"):
            groups[group].append(ratio)
    for group, ratios in groups.items():
        good = int((np.abs(np.array(ratios) - 1) <= WITHIN).sum())
        lines.append(
            f"{group}: {good} of {len(ratios)} within 25 %, median ratio {np.median(ratios):.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure on the ranks of this job, if sizes are given, and compare all cells."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network")
    parser.add_argument("--sizes", default="", help="bytes of a row, separated by commas")
    parser.add_argument("--seconds", type=float, default=60.0, help="no further size after so many")
    parser.add_argument("--cells", default="cells.jsonl")
    args = parser.parse_args()
    comm, net = MPI.COMM_WORLD, cluster(args.network)
    sizes = [int(size) for size in args.sizes.split(",") if size]
    for cell in measured(sizes, args.seconds, net, comm):
        if comm.rank == 0:
            with open(args.cells, "a", encoding="utf-8") as file:
                file.write(json.dumps(cell) + "\n")
    if comm.rank == 0:
        text = Path(args.cells).read_text(encoding="utf-8")
        print(summary([json.loads(line) for line in text.splitlines()], net))


if __name__ == "__main__":
    main()
