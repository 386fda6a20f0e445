"""Automatic step sizes: "auto", the fastest (or most accurate) one in a linear model, and "safe", a
bound.
"""

from .choice import Choice as Choice, requested_rule as requested_rule, with_size as with_size
from .guard import Guard as Guard, Retry as Retry
from .search import ModelSearch as ModelSearch, Search as Search, Unstable as Unstable
from .task import Task as Task
from .tuning import TUNING as TUNING
from .varying import unstable_schedule as unstable_schedule
