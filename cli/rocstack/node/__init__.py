"""What a node is and what fits it. Standard library only, Python 3.8 at run time: this package travels into the
image (entrypoint, Slurm prolog) and over SSH to nodes that have nothing of ours."""
