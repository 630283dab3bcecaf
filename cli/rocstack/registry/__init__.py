"""Images in registries and archives: names, layers, pushing, pulling."""
