"""Measure solver steps, from a checkout: ``mpirun -n 4 python -m benchmarks``."""

from mpidec.bench.command import Suite

from .steps import StepsCell

EPILOG = """\
examples:
  mpirun -n 4 python -m benchmarks --sizes 64K,8M                    solver steps

groups of rows:
  steps    solver.step as solve runs it, with rows that the solver allocates itself; against the same equations by hand:
           NumPy on preallocated arrays, persistent requests to the same neighbours with the same weights.  For DGD also
           an Allreduce between preallocated arrays instead.  The gradient is a fixed array, so its cost is not included.

Contenders take turns, and their results are compared before they are timed, as python -m mpidec.bench --help describes; shown are
  /hand    the time over that of the version by hand (smaller is better; below 1, mpidec is faster)
  Allr/    the time of the version with MPI_Allreduce over this time (larger is better)

exit status: 0 measured, 1 a contender's result is wrong, 2 something in the command line is wrong."""

COMMAND = Suite(
    {"steps": StepsCell},
    "Measure solver steps against the same by hand.",
    EPILOG,
    started_as="python -m benchmarks",
).command

if __name__ == "__main__":
    raise SystemExit(COMMAND.main())
