"""A stack, its components and its lock: what goes into an image, resolved and judged. Pure but for reading files."""
