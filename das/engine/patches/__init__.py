"""Changes of vLLM that all engines of das need, or that their device needs. Each file says what it replaces, and why.

front_end.py: what a request may ask. weights.py: new weights. cpu.py, cpu_invariance.py, gpu.py, tuned_matmuls.py: what
a device needs. replace.py: how anything is replaced. Changes of one part of das lie beside that part: those of the
model runner in das/engine/runners, those of TRL's trainers in das/trl/patches.py.

An engine asks for das by its worker class, `worker_cls="das.engine.worker.DasWorker"`. The patches go onto the objects
of that engine, so the classes that other engines share stay as they are; the one exception is in front_end.py. Features
hook the objects of one engine too, where it asks for them: see das/engine/runners/first/ for drafts that
branch (branches.py), coupled drafts (coupled_method.py) and a history beside a head (runner.py).
"""
