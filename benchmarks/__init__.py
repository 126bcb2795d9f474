"""How fast and how small the losses and maps are, beside what they replace; ``python -m benchmarks``."""
