"""The small policy, which is trained on this machine when a run first needs it, and the tasks it is trained on."""
