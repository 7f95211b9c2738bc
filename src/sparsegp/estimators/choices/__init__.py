"""What is chosen before a fit: starting values, the kernel, the approximation."""
