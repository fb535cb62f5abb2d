"""Metal kernels, their text as it ships, and what every way to run them has in common."""
