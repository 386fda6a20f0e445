"""BlueFog: make decentralized algorithms practical for optimization and deep learning (Ying et al.,
2021).
"""

from .cost import CommunicationCost
from .fish import School
from .imagenet import HierarchicalTraining
from .listings import Listings
from .networks import Table3

EXPERIMENTS = (School, Listings, CommunicationCost, HierarchicalTraining, Table3)
