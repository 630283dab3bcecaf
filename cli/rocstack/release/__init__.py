"""Releases: which images belong together, what is said of each, and under which tags they are published."""
