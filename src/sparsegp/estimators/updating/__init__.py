"""Models that take rows in and give them back."""
