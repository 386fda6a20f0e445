"""Checks of an installation and its host."""
