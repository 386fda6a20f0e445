"""Data: built-in sets, the user's files, images, partitions over agents, batches."""
