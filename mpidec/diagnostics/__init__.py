"""Checks of an installation and its host."""

from . import host as host
from .doctor import main as main
