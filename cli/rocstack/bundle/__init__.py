"""Bundles: a release, and rocstack with its Python, in one file for a site without a network."""
