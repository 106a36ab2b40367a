"""The small policy made on the spot, and the arithmetic task it is trained on."""
