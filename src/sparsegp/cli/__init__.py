"""The command line. Modules here import torch and scikit-learn inside functions, so that --help answers at once."""

from sparsegp.cli.main import app, main

__all__ = ["app", "main"]
