"""Outputs given that they are in a language, beside masking token by token."""
