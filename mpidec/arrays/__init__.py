"""NumPy, PyTorch and CuPy arrays behind one small protocol."""
