"""Pretrained models made sparse: what it costs where the weights are ones that people use."""
