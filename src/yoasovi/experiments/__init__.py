"""Experiments: simulated data, and the paper's tables and figures rerun."""
