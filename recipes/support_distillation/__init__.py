"""Distillation from stored supports of a teacher, beside its full distribution, top-k and random sampling."""
