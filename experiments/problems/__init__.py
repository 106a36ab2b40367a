"""Published problem sets: read from the hub or from a local file, and turned into the rows that a trainer takes."""
