"""Known faults as data and rules: what a log or a node profile shows, its cause and the next step."""
