"""What every part needs: errors, checked strings, documents, paths, levels; and the version."""

__version__ = "0.1.0"
