"""Data: built-in sets, the user's files, images, partitions over agents, batches."""

from .batches import Batches as Batches
from .built_in import (
    DATA_TABLE as DATA_TABLE,
    DATASETS as DATASETS,
    Dataset as Dataset,
    breast_cancer as breast_cancer,
    class_numbers as class_numbers,
    dataset as dataset,
    diabetes as diabetes,
    digits as digits,
    load as load,
    loaded as loaded,
    maker as maker,
    signs as signs,
    standardized as standardized,
    synthetic_least_squares as synthetic_least_squares,
)
from .images import (
    Images as Images,
    augment as augment,
    image_sets as image_sets,
    images as images,
    split as split,
)
from .labelled import (
    Reading as Reading,
    Targets as Targets,
    is_folder as is_folder,
    is_labelled as is_labelled,
    raised as raised,
)
from .libsvm import FROM_0 as FROM_0
from .partition import TAKE as TAKE, partition as partition, stack as stack
