"""Fitted estimators to model files and back."""
