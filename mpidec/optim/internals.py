"""What the rest of the package uses of mpidec.optim beside its public names."""

from .algorithms import Algorithm as Algorithm
from .methods import Mixer as Mixer, mean as mean
from .rows import Bucket as Bucket, buckets as buckets
from .scaling import unscale as unscale
