"""Step sizes that a run finds itself: "auto", the fastest (or most accurate) one in a linear model, and "safe", a bound."""

from .choice import Choice as Choice
from .choice import Search as Search
from .choice import Unstable as Unstable
from .choice import requested_rule as requested_rule
from .choice import with_size as with_size
from .guard import Guard as Guard
from .guard import Retry as Retry
