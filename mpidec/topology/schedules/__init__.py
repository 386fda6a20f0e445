"""Time-varying graphs: one-peer, finite-time, random, failing and moving ones."""
