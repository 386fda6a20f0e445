"""Run-time services of one process: launch checks, waiting, memory of the node, agents on ranks."""
