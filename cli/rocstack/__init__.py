"""rocstack: from a list of AMD GPU nodes to a verified multi-node training cluster."""

__version__ = "0.1.0"
