"""Drafters with a draft model, alone or with the history of past responses. They decide when the model drafts.

The models themselves are elsewhere: das/engine/drafters runs them in vLLM, and experiments/replay/model_on_text.py
imitates them on recorded text. Both have the same interface, so a simulated rollout decides like a real one.
"""
