"""Short GRPO trainings, one engine in this process or several on Ray, with faults.

Usage: cluster_run.py POLICY FOLDER JOB...

A JOB is METHOD:ENGINES[:FAULTS], such as das:2:kill,raise; 0 engines: in this process. FOLDER/results.json gets what
each job computed. With the word `broadcast` behind the engines, weights are broadcast; with `distributions`, drafters
remember distributions. The first fault strikes in the first step, the second in the second one, as soon as the engine
that they strike has requests:

kill    SIGKILL for the engine       freeze  SIGSTOP for it       raise   its next pass raises
stall   SIGSTOP for STALL_S seconds
grow    one more engine is asked for; it joins before the next step
shrink  an engine is sent away
cut     SIGKILL for the first engine that is about to receive a broadcast together with others
"""

import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "trl")]

import das  # noqa: E402
from das.cluster.cluster import Cluster  # noqa: E402
from das.cluster.pool import EnginePool  # noqa: E402

SETTINGS = ("broadcast", "distributions")  # words of a job that are no faults
SILENT_S = 20.0
STALL_S = 6.0


def plant(faults: Sequence[str]) -> None:
    """Let each fault strike in its rollout of the clusters of this process, as soon as an engine has requests.

    faults: by rollout, counted from 0. "": none strikes.
    """
    original = Cluster._hand_out
    struck: list[Any] = []

    @functools.wraps(original)
    def hand_out(cluster: Cluster, running: Any) -> None:
        original(cluster, running)
        holding = [number for number in running.dispatcher.live if running.dispatcher.held(number)]
        if running in struck or not holding:
            return
        struck.append(running)
        fault = faults[len(struck) - 1] if len(struck) <= len(faults) else ""
        if not fault:
            return
        engine = cluster.engines.engines[holding[0]]
        if fault in ("grow", "shrink"):
            cluster.resize(2 if fault == "grow" else 1)
        elif fault == "raise":
            engine.actor.call.remote("poll", ["no request"], [], 0, 0.0)
        else:
            os.kill(engine.pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        if fault == "stall":
            threading.Timer(STALL_S, os.kill, (engine.pid, signal.SIGCONT)).start()

    Cluster._hand_out = hand_out  # type: ignore[method-assign]


def plant_cut() -> None:
    """Let the first engine of the first broadcast to several die."""
    original = EnginePool._call
    struck = False

    @functools.wraps(original)
    def call(engines: EnginePool, engine: Any, method: str, *args: Any) -> None:
        nonlocal struck
        if not struck and method == "receive_weights" and args[1].size > 2 and args[1].rank == 1:
            struck = True
            os.kill(engine.pid, signal.SIGKILL)
        original(engines, engine, method, *args)

    EnginePool._call = call  # type: ignore[method-assign]


def main(policy: str, folder: Path, jobs: list[str]) -> None:
    import trl_runs

    trl_runs.COMMON["max_steps"] = 3
    original, original_call = Cluster._hand_out, EnginePool._call
    results = {}
    for job in jobs:
        method, engines, *words = job.split(":")
        Cluster._hand_out = original  # type: ignore[method-assign]
        EnginePool._call = original_call  # type: ignore[method-assign]
        weights = "broadcast" if "broadcast" in words else None
        if "cut" in words:
            plant_cut()
        else:
            plant([fault for word in words if word not in SETTINGS for fault in word.split(",")])
        das.speculate(
            method,
            drafter={"remember": "distributions" if "distributions" in words else "tokens"},
            budget={"name": "fixed", "tokens": 8},
            engine={"max_num_seqs": 8, "max_model_len": 128, "extra": {"num_gpu_blocks_override": 256}},
            cluster={"engines": int(engines), "silent_s": SILENT_S, "weights": weights} if int(engines) else None,
        )
        trainer = trl_runs.trainer("GRPO", policy, policy, str(folder / job.replace(":", "_")))
        clusters: list[dict[str, Any]] = []
        finish = trainer.vllm_generation._finish

        def noted(
            rollout: Any,
            finish: Any = finish,
            clusters: Any = clusters,
            grows: Any = "grow" in job,
            trainer: Any = trainer,
        ) -> None:
            report = rollout.report
            clusters.append({**(report.cluster.plain() if report.cluster else {}), "timeline": report.engines})
            finish(rollout)
            if grows:  # steps are shorter than the start of an engine
                cluster = trainer.vllm_generation.engines.cluster
                while sum(engine.started for engine in cluster.engines.engines.values()) < cluster._size:
                    cluster.engines.next_event()

        trainer.vllm_generation._finish = noted
        results[job] = {**trl_runs.train(trainer), "rewards": rewards(trainer), "clusters": clusters}
        if int(engines):
            texts = trainer.vllm_generation.engines.cluster.history.saved().texts
            results[job]["remembers"] = [text.remembered is not None for text in texts]
        trainer.vllm_generation.close()
        if not int(engines):
            trainer.vllm_generation.llm.llm_engine.engine_core.shutdown()
            from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

            cleanup_dist_env_and_memory()
        (folder / "results.json").write_text(json.dumps(results, default=float))


def rewards(trainer: Any) -> list[Any]:
    return [log["reward"] for log in trainer.state.log_history if "reward" in log]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
