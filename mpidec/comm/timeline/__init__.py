"""Timelines: the events of each rank in files for Perfetto, and an analysis of waiting times."""
