"""Graphs and small tools that do not need PyTorch, and `basics`, which do."""
