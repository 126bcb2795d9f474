"""Translation with sparse and constrained cross-attention, and what it repeats and drops."""
