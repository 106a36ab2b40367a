"""Short GRPO trainings, one engine in this process or several on Ray, with faults.

Usage: cluster_run.py POLICY FOLDER JOB...

A JOB is METHOD:ENGINES[:FAULT], such as das:2:kill; 0 engines: in this process. FOLDER/results.json gets what each job
computed. With the word `broadcast` behind the engines, weights are broadcast. Faults strike in every step, as soon as
the engine that they strike has requests:

kill    SIGKILL for the engine       freeze  SIGSTOP for it       raise   its next pass raises
stall   SIGSTOP for STALL_S seconds
resize  one more engine is asked for amid the first step and joins in the second one, amid which it is sent away
cut     SIGKILL for an engine that is about to receive a broadcast together with others
"""

import functools
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "trl")]

import das  # noqa: E402
from das.cluster.cluster import Cluster  # noqa: E402
from das.cluster.pool import EnginePool  # noqa: E402

SILENT_S = 20.0
STALL_S = 6.0
FAULTS = ("kill", "freeze", "raise", "stall", "resize", "cut")


def plant(fault: str, only: int | None = None) -> None:
    """Let the fault strike once in each rollout of the clusters of this process, as soon as an engine has requests.

    only: the number of the one rollout in which it strikes, counted from 0.
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
        if only is not None and len(struck) - 1 != only:
            return
        engine = cluster.engines.engines[holding[0]]
        if fault == "resize":
            cluster.resize(2 if len(struck) % 2 else 1)
        elif fault == "raise":
            engine.actor.call.remote("poll", ["no request"], [], 0, 0.0)
        else:
            os.kill(engine.pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        if fault == "stall":
            threading.Timer(STALL_S, os.kill, (engine.pid, signal.SIGCONT)).start()

    Cluster._hand_out = hand_out  # type: ignore[method-assign]


def plant_cut() -> None:
    """Let the first engine of each broadcast to several die."""
    original = EnginePool._call

    @functools.wraps(original)
    def call(engines: EnginePool, engine: Any, method: str, *args: Any) -> None:
        if method == "receive_weights" and args[1].size > 2 and args[1].rank == 1:
            os.kill(engine.pid, signal.SIGKILL)
        original(engines, engine, method, *args)

    EnginePool._call = call  # type: ignore[method-assign]


def main(policy: str, folder: Path, jobs: list[str]) -> None:
    import trl_runs

    trl_runs.COMMON["max_steps"] = 3
    original, original_call = Cluster._hand_out, EnginePool._call
    results = {}
    for job in jobs:
        method, engines, *faults = job.split(":")
        Cluster._hand_out = original  # type: ignore[method-assign]
        EnginePool._call = original_call  # type: ignore[method-assign]
        weights = "broadcast" if "broadcast" in faults else None
        for fault in faults:
            if fault == "cut":
                plant_cut()
            elif fault != "broadcast":
                plant(fault)
        das.speculate(
            method,
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
            faults: Any = faults,
            trainer: Any = trainer,
        ) -> None:
            clusters.append({**rollout.report.get("cluster", {}), "timeline": rollout.report.get("engines", [])})
            finish(rollout)
            if "resize" in faults:  # steps are shorter than the start of an engine
                cluster = trainer.vllm_generation.engines.cluster
                while sum(engine.started for engine in cluster.engines.engines.values()) < cluster._size:
                    cluster.engines.next_event()

        trainer.vllm_generation._finish = noted
        results[job] = {**trl_runs.train(trainer), "rewards": rewards(trainer), "clusters": clusters}
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
