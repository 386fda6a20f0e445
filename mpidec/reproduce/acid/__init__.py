"""A2CiD2: accelerating asynchronous communication (Nabli et al., NeurIPS 2023)."""
