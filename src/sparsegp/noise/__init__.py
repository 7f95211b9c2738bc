"""Learned noise: the process g of the log noise variance."""
