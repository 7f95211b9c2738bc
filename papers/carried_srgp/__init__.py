"""Carried SRGP (003 sec. 4.1, appendix C): the posterior of u and its derivatives, forward over mini-batches."""
