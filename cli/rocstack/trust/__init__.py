"""Signatures and attestations, as cosign makes and checks them by key."""
