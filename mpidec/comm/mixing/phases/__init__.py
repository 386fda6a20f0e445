"""The operators of one step, W_k: plain, faulty, compressed, repeated, accelerated, striped."""
