"""Command ``python -m mpidec.trace``."""

from __future__ import annotations

import argparse
from glob import escape, glob

from ..cli import Command, Flag, aligned
from ..comm.timeline import files, merge, table
from ..exceptions import ConfigError

EPILOG = """\
examples:
  MPIDEC_TIMELINE=run. mpirun -n 4 python program.py             each rank writes run.<rank>.json as it goes
  python -m mpidec.trace merge run. -o run.json                  one file, for https://ui.perfetto.dev, and the stragglers
  mpirun -n 4 python -m mpidec.run --trace run.json              the same of an experiment

A rank waits for another one from the begin of a call until the other one has begun it, too.  The
table shows the share of its time that each rank waited, for whom most, and how long others waited
for it; arrows in the timeline show each wait. Files of a running job, and of one that was killed,
can be merged as well.
"""

FLAGS = [
    Flag("action", choices=["merge"], help="merge: write one file of those of all ranks"),
    Flag("prefix", metavar="PREFIX", help="the files are PREFIX0.json, PREFIX1.json, ..."),
    Flag("-o", "--out", metavar="FILE", default="trace.json", help="default: trace.json"),
]


def prepare(args: argparse.Namespace, ranks: int) -> argparse.Namespace:
    """Return the arguments, checked."""
    if not files(args.prefix):
        there = sorted(glob(f"{escape(args.prefix)}*.json"))[:3]
        raise ConfigError(
            f"no file {args.prefix}<rank>.json: expected the prefix of a timeline"
            + (f"; there is {', '.join(there)}" if there else "")
        )
    return args


def execute(args: argparse.Namespace) -> None:
    """Merge the files, and print the table."""
    texts = []
    for path in files(args.prefix):
        with open(path, encoding="utf-8") as file:
            texts.append(file.read())
    print("\n".join(aligned(table(merge(texts, args.out)), "><<>")))
    print(args.out, flush=True)


TRACE = Command(
    name="trace",
    description="Merge the timelines of all ranks into one, and show who waited for whom.",
    epilog=EPILOG,
    flags=FLAGS,
    prepare=prepare,
    alone=execute,
)
main = TRACE.main
