"""Learning hyper-parameters and inducing inputs from a row's own objective."""
