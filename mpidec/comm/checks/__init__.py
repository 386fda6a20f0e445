"""Matching of calls between ranks: message headers, operations under way, and reports of
mismatches.
"""
