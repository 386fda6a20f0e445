"""What the rest of the package uses of mpidec.topology beside its public names."""

from .base.drawing import positions as positions
from .base.schedule import refuse_filter as refuse_filter
from .base.source import TOLERANCE as TOLERANCE, EdgeBlock as EdgeBlock
from .base.topology import undirected_edges as undirected_edges
from .base.weights import FOR_DIGRAPHS as FOR_DIGRAPHS, WeightsLike as WeightsLike
from .derived.pair import column_part as column_part
from .derived.transposed import transpose as transpose
from .given import (
    TOPOLOGIES as TOPOLOGIES,
    NetworkxGraph as NetworkxGraph,
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
from .graphs.restricted import restricted as restricted
from .graphs.spanning import tree_of_parents as tree_of_parents
from .schedules.changing import DENSE as DENSE
