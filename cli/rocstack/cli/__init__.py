"""The command line: the only part of rocstack that prints."""
