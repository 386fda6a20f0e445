"""Engines that do not answer."""

from ..interactive import interrupt_hanged_processes

__all__ = ["interrupt_hanged_processes"]
