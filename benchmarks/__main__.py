"""Measure solver steps and training, from a checkout: ``mpirun -n 4 python -m benchmarks``."""

from mpidec.bench.command import Suite

from .steps import StepsCell
from .training import TrainCell

EPILOG = """\
examples:
  mpirun -n 4 python -m benchmarks --sizes 64K,8M                    solver steps
  mpirun -n 4 python -m benchmarks --rows train                      networks of 65 thousand and 4 million parameters
  mpirun -n 4 python -m benchmarks --rows train --sizes 76M          19 million

groups of rows:
  steps    solver.step as solve runs it, with rows that the solver allocates itself; against the same equations by hand:
           NumPy on preallocated arrays, persistent requests to the same neighbours with the same weights.  For DGD also
           an Allreduce between preallocated arrays instead.  The gradient is a fixed array, so its cost is not included.
  train    a step of a PyTorch model, forward, backward and update, on one thread per rank: a network of three linear layers
           with this many bytes of float32 parameters, batches of 32, SGD; with no communication, with the algorithms of
           mpidec.optim, by torch's DistributedDataParallel over gloo, and by Decent-DP on a ring if it is installed.

Contenders take turns, and their results are compared before they are timed, as python -m mpidec.bench --help describes; shown are
  /hand    the time over that of the version by hand (smaller is better; below 1, mpidec is faster)
  Allr/    the time of the version with MPI_Allreduce over this time (larger is better)
  /alone   the time over that without communication (smaller is better; the goal is 1)
  DDP/     the time of DistributedDataParallel over this time (larger is better)
  extra    the memory that an algorithm holds beyond parameters, gradients and the optimizer's state, in units of the parameters

exit status: 0 measured, 1 a contender's result is wrong, 2 something in the command line is wrong."""

COMMAND = Suite(
    {"steps": StepsCell, "train": TrainCell},
    "Measure solver steps against the same by hand, and training against DistributedDataParallel.",
    EPILOG,
    started_as="python -m benchmarks",
).command

if __name__ == "__main__":
    raise SystemExit(COMMAND.main())
