"""The HTTP interface: files, fine-tuning and other jobs, nodes and sizes, for the people of one cluster. Each request
to Slurm carries the token of the person who asks, so a job is its owner's; what Slurm doesn't keep is in a database."""
