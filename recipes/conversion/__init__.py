"""From softmax to sparse: the cost of converting a trained model, and six ways to reduce it."""
