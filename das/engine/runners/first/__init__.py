"""das on vLLM's first model runner, which vLLM deprecated.

This folder, its branches in runners/choice.py, and the parts of das/verify that only this runner calls
(sampling_parameters.py, logprobs.py) can be deleted with the first vLLM release that has no first model runner. vLLM
0.29's notes announced this for 0.32, but 0.33.0 still has it.
"""
