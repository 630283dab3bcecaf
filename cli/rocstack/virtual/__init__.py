"""Virtual nodes: node models, the /sys trees made from them, and clusters of node containers."""
