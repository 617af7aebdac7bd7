"""What goes on around a fit while it runs."""
