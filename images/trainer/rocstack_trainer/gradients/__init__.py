"""Gradients: how they are packed, encoded and summed over the ranks."""
