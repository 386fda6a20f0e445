"""What the rest of the package uses of mpidec.topology beside its public names."""

from .changing import DENSE as DENSE
from .drawing import positions as positions
from .given import (
    TOPOLOGIES as TOPOLOGIES,
    Graph as Graph,
    TopologyLike as TopologyLike,
    as_graph as as_graph,
    built as built,
    converted as converted,
    is_matrix as is_matrix,
    is_networkx as is_networkx,
    named as named,
    required_parameters as required_parameters,
    what_is as what_is,
)
from .matchings import undirected_edges as undirected_edges
from .pair import column_part as column_part
from .schedule import refuse_filter as refuse_filter
from .source import TOLERANCE as TOLERANCE, EdgeBlock as EdgeBlock
from .spanning import tree_of_parents as tree_of_parents
from .transposed import transpose as transpose
from .weights import FOR_DIGRAPHS as FOR_DIGRAPHS, WeightsLike as WeightsLike
