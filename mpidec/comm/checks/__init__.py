"""Matching of calls between ranks: message headers, operations in progress, and reports of
mismatches.
"""
