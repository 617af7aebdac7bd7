"""Fits on disk."""
