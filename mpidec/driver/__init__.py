"""The loop around solvers: solve, simulate and tune; results, outcomes, metrics, provenance,
step sizes.
"""
