"""A harness of faults: see docs/reliability.md."""
