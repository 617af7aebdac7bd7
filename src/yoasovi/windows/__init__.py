"""The default method's windows: plans, lines, judgements. No jax in here."""
