"""What a block of rows says: approximations, statistics, posteriors. No input or output, no time."""
