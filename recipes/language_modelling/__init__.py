"""Language modelling: text sampled straight from a sparse distribution, against truncated softmax."""
