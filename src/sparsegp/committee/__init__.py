"""Committees: experts on disjoint rows with shared hyper-parameters, and the table of ways to combine them."""

from sparsegp.committee.aggregation import TABLE, Aggregation, Moments, aggregate
from sparsegp.committee.committee import Committee
from sparsegp.committee.experts import Expert, GaussianExpert, Process

__all__ = ["TABLE", "Aggregation", "Committee", "Expert", "GaussianExpert", "Moments", "Process", "aggregate"]
