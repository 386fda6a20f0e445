"""Command lines of `mpidec run`, without a run."""

from mpidec.experiment.command import RUN


def prepared(argv, ranks):
    """What a command line asks for in a job of so many ranks."""
    return RUN.prepare(RUN.parse(argv), ranks)
