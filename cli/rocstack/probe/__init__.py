"""What nodes are: recordings, node profiles, and how to show, compare and redact them."""
