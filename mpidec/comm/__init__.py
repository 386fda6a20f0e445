"""Communication: arrays, kernels, the node's shared memory, transports, windows, mixing; users
meet it as `mpidec.Network`.
"""
