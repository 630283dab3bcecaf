"""A deploy at work: images, containers, Slurm, wave by wave; and taking it down."""
