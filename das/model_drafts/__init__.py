"""Drafts from a model, alone or beside the history: which of them drafts, and when a pass of the model pays.

The model itself is elsewhere: das/engine/drafters runs one in vLLM, das/replay/model_on_text.py imitates one on
recorded text. Both are asked in the same way, so that a simulated rollout decides as a real one does.
"""
