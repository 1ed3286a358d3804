"""Protocols that judge explanations."""
