"""Calls for programs that are written for one agent per rank."""
