"""Recipes: small studies that train sparse models and measure them; one folder each."""
