"""Morphological inflection with sparse heads: all forms of nonzero probability, on English verbs or your own table."""
