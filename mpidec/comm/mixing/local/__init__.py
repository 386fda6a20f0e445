"""Local-view calls: the network seen from one agent on each rank."""
