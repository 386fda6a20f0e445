"""What all mixers and the network use: edges, packing, gradients, agreement of ranks, life cycle."""
