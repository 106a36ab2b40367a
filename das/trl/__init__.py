"""What das does in trainers of TRL."""

from das.engine.known_warnings import silence_known

silence_known()  # before anything here imports TRL, which warns of vLLM's version then
