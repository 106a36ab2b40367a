"""An agent task for the small policy: sums of several steps, and a calculator that it may call."""
