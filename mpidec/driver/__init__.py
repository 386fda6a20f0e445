"""The loop around solvers: solve, simulate and tune; results, stopping, metrics, provenance, step sizes."""
