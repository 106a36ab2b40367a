"""Everything that drafts by a model.

self_draft.py  the policy's own quantized weights as the draft model of an engine
quantized.py   the formats of these weights, and the kernels that multiply them
coupled.py     drawing a model's tokens with the noise that the verifier will use
head_files.py  checks of draft heads on disk

vLLM's own drafters run their models themselves (das/engine/runner/speculator.py draws their tokens).
"""
