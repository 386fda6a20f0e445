"""Topologies made of others: pairs of weightings, stripes of columns, transposes."""
