"""Translation from scratch with every map at the output and in attention, over alpha, and with controlled sparsity."""
