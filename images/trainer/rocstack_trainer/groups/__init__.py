"""DiLoCo groups: the outer optimizer, and who is there."""
