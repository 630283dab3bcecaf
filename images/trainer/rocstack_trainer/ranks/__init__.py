"""Ranks: how they start, meet, watch each other and end."""
