"""Small compiled programs: everything that touches log p."""
