"""A code-like task for the small policy; a folder of its own keeps it out of the arithmetic policy's cache key."""
