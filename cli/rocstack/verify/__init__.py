"""The acceptance suite's own parts: what a check is, what it found, and how the cluster is reached. The checks
themselves are tests/cluster."""
