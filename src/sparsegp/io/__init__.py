"""Files: saved models, and rows that are read from disk."""
