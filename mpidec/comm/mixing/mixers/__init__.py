"""Mixers, W of all steps: the plain one, and those derived from it."""
