"""Learned input-dependent noise for any row of the table (paper 001)."""
