"""The network: agents on ranks."""
