"""Faults of edges and agents, and robust rules against them."""
