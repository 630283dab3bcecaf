"""How a deployed cluster is."""
