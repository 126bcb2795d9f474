"""Tests. A package of its own, so that none of that name from elsewhere comes before it."""
