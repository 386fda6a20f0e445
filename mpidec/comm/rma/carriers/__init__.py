"""What moves the rows of a window: memory that the ranks of a node map ("shared"), messages, MPI's
one-sided calls ("rma").

They know records and messages, and nothing of slots and windows, which stand above them.
"""
