"""One-sided windows: arrays that neighbours write to without the owner's help, with push-sum
weights and mutexes.
"""

from .window import Window as Window
