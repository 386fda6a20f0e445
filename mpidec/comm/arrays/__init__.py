"""Arrays of NumPy, PyTorch and CuPy behind one small protocol."""
