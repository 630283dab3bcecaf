"""What a run tells: lines, numbers and curves."""
