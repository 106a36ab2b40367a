"""Draft models, alone or combined with the history: who drafts, and when a pass of the model pays.

The models themselves are elsewhere: das/engine/drafters runs them in vLLM, and experiments/replay/model_on_text.py
imitates them on recorded text. Both have the same interface, so a simulated rollout decides like a real one.
"""
