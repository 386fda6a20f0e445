"""Clocks: what makes the states of a run, one after the other; everything else of a run watches."""

from .clock import Clock as Clock, Watched as Watched
from .queue import Iterates as Iterates, Simulated as Simulated
from .steps import Steps as Steps
