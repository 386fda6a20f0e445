"""What the rest of the package uses of mpidec.train beside its public names."""

from .loop import Training as Training
from .settings import graph as graph, graph_name as graph_name
