"""What the rest of the package uses of mpidec.predict."""

from .cluster import modelled as modelled
from .counting import nodes_of as nodes_of
from .model import mean_cost as mean_cost
