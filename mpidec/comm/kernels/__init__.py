"""Weighted sums of rows in C and in NumPy, bit-identical."""
