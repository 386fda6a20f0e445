"""Tests of components: the properties that every solver and every graph must have, for those of users, too."""

from ..exceptions import ContractError as ContractError
from .contract import SolverContract as SolverContract, check_solver as check_solver
from .graphs import TopologyContract as TopologyContract, check_topology as check_topology

__all__ = [
    "ContractError",
    "SolverContract",
    "TopologyContract",
    "check_solver",
    "check_topology",
]


def __dir__() -> list[str]:
    """The public names."""
    return __all__
