"""Experiments described by settings: their schema, their sources, and the command that runs
them.
"""
