"""An image's way from this machine to the nodes: its layers, as zstd, through a registry or as an archive."""
