"""Make the small policy, which is trained on this machine when a run first needs it, and the problems that it
works on."""
