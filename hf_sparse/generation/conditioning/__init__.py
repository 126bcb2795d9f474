"""Exact conditioning: the distribution of a model's outputs, given that they are in a language."""
