"""What every package uses: errors, checked strings, YAML with line numbers, paths, levels."""
