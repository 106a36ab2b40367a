"""Roll out on many engines: deal requests to engines, and give each engine the texts that the others made."""
