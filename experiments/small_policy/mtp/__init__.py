"""A small policy with an MTP layer; a folder of its own keeps it out of the other policies' cache keys."""
