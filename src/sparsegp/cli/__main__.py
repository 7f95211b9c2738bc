"""`python -m sparsegp.cli`."""

from sparsegp.cli.main import main

main()
