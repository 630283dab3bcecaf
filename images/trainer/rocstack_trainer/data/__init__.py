"""Data: token files, and which rank sees which sample."""
