"""Multilabel classification without a threshold: a label is on if its probability is not zero."""
