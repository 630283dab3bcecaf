"""How images reach the nodes."""
