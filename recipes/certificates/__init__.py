"""Input tokens that provably have no influence, by depth and sparsity, with every proof tried by deletion."""
