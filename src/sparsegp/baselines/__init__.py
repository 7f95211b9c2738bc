"""Models the sparse rows are measured against, and the rows of paper 004 that are not block statistics."""

from sparsegp.baselines.ehsod import EmpiricalHeteroscedasticRegressor
from sparsegp.baselines.exact import ExactObjective, ExactPosterior
from sparsegp.baselines.nystrom import NystromPosterior
from sparsegp.baselines.rvm import RelevanceVectorRegressor
from sparsegp.baselines.transduction import predict_augmented, predict_bcm

__all__ = [
    "EmpiricalHeteroscedasticRegressor",
    "ExactObjective",
    "ExactPosterior",
    "NystromPosterior",
    "RelevanceVectorRegressor",
    "predict_augmented",
    "predict_bcm",
]
