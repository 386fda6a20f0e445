"""What all mixers and the network use: edges, packing, gradients, agreement, life cycle."""
