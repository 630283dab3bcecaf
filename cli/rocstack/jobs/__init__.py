"""Jobs under Slurm: recipes become batch scripts, which their owner submits, watches and ends."""
