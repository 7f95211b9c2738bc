"""Fits in steps and under time budgets."""
