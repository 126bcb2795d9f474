"""Search over all strings of a model, with proofs of its results."""
