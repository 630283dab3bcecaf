"""Models: from a folder or a config, equal on all ranks."""
