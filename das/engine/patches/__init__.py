"""Changes that das makes to vLLM. Each file says what it replaces, and why.

front_end.py: requests. model_runner.py: the choice of the runner. weights.py: new weights. cpu.py, gpu.py: devices.
replace.py: the ways to replace a name, and all attributes that das sets. Other changes lie beside the part that needs
them: those of the model runner in das/engine/runner, that of an engine's arguments in das/engine/install.py, those of
TRL in das/trl.

An engine asks for das by its worker class, `worker_cls="das.engine.worker.DasWorker"`. Nearly all changes are made on
the objects of that engine, so other engines of the process stay as they are. Only four additions concern all engines:
the front end looks for das (front_end.py), one argument may stand for all that das needs (das/engine/install.py), a
config knows its model runner (model_runner.py), and weight transfer has one more backend (weights.py). Other shared
functions are replaced only while an engine is built or loads weights; on a CPU also kernels, which no other engine
launches (das/engine/runner/stand_in.py).
"""
