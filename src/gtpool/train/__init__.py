"""Training: one run, several runs side by side, one run in several processes."""
