"""The steps of rocstack as functions: typed options in, values out. They print nothing and never read the terminal."""
