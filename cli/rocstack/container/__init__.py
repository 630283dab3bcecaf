"""How a container of the image is run on a host: devices, mounts, limits, environment."""
