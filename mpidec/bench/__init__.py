"""The benchmark: mixing, windows, solver steps and training against MPI's own operations, peers
and the memory's limit.
"""
