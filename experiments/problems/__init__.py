"""Read published problem sets from the hub or from a local file, and turn them into the rows that a trainer takes."""
