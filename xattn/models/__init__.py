"""Models that can be loaded by name."""
