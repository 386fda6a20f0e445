"""Constant graphs: lattices, trees, circulant, random and given ones."""
