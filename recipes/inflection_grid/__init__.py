"""Inflection in several languages over a grid of alpha at the output and in attention, with certificates."""
