"""The answer of a fit, and what is made of it."""
