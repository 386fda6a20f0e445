"""Geometry of a halo, and the ways to fetch it."""
