"""What a model needs on a kind of GPU, in which layout, and how fast it would be: by formula, without a GPU. Pure but
for reading the data files."""
