"""How far a q(u) is from another and from the evidence: KL divergence and the uncollapsed objective (M5)."""

import math

from sparsegp import linalg
from sparsegp.core.posterior import InducingPosterior
from sparsegp.core.statistics import BlockStatistics


def kl_divergence(q: InducingPosterior, p: InducingPosterior) -> float:
    """KL(q || p) = (tr(B_p S_q) + (m_q - m_p)^T B_p (m_q - m_p) - M + log|B_q| - log|B_p|)/2; the same for u and v."""
    trace = linalg.solve_lower(q.LB.factor, p.LB.factor).square().sum()
    gap = p.LB.factor.mT @ (q.mean - p.mean)
    return 0.5 * float(trace + gap @ gap - len(q.mean) + q.LB.logdet - p.LB.logdet)


def kl_to_prior(q: InducingPosterior) -> float:
    """KL(q(v) || N(0, I)) = (tr S + m^T m - M + log|B|)/2."""
    trace = q.covariance.diagonal().sum()
    return 0.5 * float(trace + q.mean @ q.mean - len(q.mean) + q.LB.logdet)


def expected_log_likelihood(statistics: BlockStatistics, q: InducingPosterior) -> float:
    """sum_k { log N(y_k | H_k mu, V_k) - tr(V_k^-1 H_k Sigma H_k^T)/2 - a_k }, from the statistics of the rows."""
    spread = linalg.row_dots(statistics.precision, q.covariance).sum()
    squared_error = statistics.target_sq - float(
        2.0 * statistics.shift @ q.mean - q.mean @ statistics.precision @ q.mean - spread
    )
    constant = statistics.n_rows * math.log(2.0 * math.pi) + statistics.noise_logdet
    return -0.5 * (constant + squared_error) - statistics.penalty


def uncollapsed_objective(statistics: BlockStatistics, q: InducingPosterior) -> float:
    """J(q) = expected log likelihood - KL(q || prior) = J - KL(q || q*) (M5); J itself at the q* of the statistics."""
    return expected_log_likelihood(statistics, q) - kl_to_prior(q)
