"""What a deploy reads first: inventory, facts of the nodes, journal."""
