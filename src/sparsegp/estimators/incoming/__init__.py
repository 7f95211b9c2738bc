"""Rows as they arrive: accepted, checked, in units of the model, in blocks."""
