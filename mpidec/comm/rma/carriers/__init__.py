"""Carriers of the rows of a window: memory that the ranks of a node map ("shared"), messages, or
MPI's one-sided calls ("rma").

They depend on records and messages only, not on slots and windows, which are built on them.
"""
