"""Certificates that input tokens can be deleted: what they rest on, and the deletion itself."""
