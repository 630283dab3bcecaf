"""From an inventory and images to a running Slurm cluster."""
