"""The Slurm cluster: what `cluster:` in rocstack.yml wants, as Slurm's files and accounts. No I/O."""
