"""Everything asked of a predictive distribution."""
