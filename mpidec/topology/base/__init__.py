"""Topologies and schedules: their classes, mixing matrices, edge weights, spectra and pictures."""
