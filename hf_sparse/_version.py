"""The version of hf_sparse, read by the build and written into every saved configuration."""

__version__ = "0.1.0"
