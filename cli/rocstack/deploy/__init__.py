"""From an inventory and images to a running Slurm cluster: read, plan, ship, work; and its state afterwards."""
