"""Search over all strings a model can write, with proofs of what was found."""
