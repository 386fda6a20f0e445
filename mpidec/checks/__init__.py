"""Matching of calls between ranks: whether all make the same ones, and who waits for whom."""
