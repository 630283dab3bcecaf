"""Checkpoints, exports, and coming back."""
