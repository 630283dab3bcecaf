"""What a deploy would change, and what is wrong before it does."""
