"""How hyper-parameters are found."""
