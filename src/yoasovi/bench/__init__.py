"""`yoasovi bench`: this library beside those that people would use instead, on the same posteriors and machine."""
