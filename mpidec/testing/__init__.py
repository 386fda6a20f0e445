"""Tests of components: the properties that every solver, graph, problem and codec must have,
user-defined ones included.
"""

from ..exceptions import ContractError as ContractError
from .codecs import CodecContract as CodecContract, check_codec as check_codec
from .contract import SolverContract as SolverContract, check_solver as check_solver
from .graphs import TopologyContract as TopologyContract, check_topology as check_topology
from .problems import ProblemContract as ProblemContract, check_problem as check_problem

__all__ = [
    "CodecContract",
    "ContractError",
    "ProblemContract",
    "SolverContract",
    "TopologyContract",
    "check_codec",
    "check_problem",
    "check_solver",
    "check_topology",
]


def __dir__() -> list[str]:
    """The public names."""
    return __all__
