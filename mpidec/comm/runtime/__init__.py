"""A process among processes: launching, waiting, memory of the node, agents on ranks."""
