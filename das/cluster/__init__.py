"""Many engines: which one gets which request, and what each must be told of past rollouts."""
