"""Weighted sums of rows, in C and in NumPy, with the same bits."""
