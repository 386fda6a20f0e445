"""Communication: arrays, kernels, the node's shared memory, transports, windows, mixing; its
public face is `mpidec.Network`.
"""
