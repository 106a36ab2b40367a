"""Everything that das changes in vLLM and TRL. Each file says at its top what it replaces, and why.

front_end.py: what a request may ask. runner.py: the model runner's sampler, drafts and counts. weights.py: new weights.
cpu.py, gpu.py: what a device needs. trl_trainers.py: the trainers of TRL.

An engine asks for das by its worker class, `worker_cls="das.engine.worker.DasWorker"`. The patches go onto the objects
of that engine, so the classes that other engines share stay as they are; the one exception is in front_end.py. Features
hook the objects of one engine too, where it asks for them: drafts that branch (das/engine/branches.py), coupled drafts
(coupled_methods.py) and a history beside a head (head_method.py).
"""
