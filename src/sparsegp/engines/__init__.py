"""Ways of folding block statistics into a posterior."""
