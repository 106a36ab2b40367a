"""Short GRPO trainings, one engine in this process or several on Ray, with faults.

Usage: cluster_run.py POLICY FOLDER JOB...

A JOB is METHOD:ENGINES[:FAULTS], such as das:2:kill,raise; 0 engines: in this process. FOLDER/results.json gets what
each job computed. With the word `distributions` behind the engines, drafters remember distributions. The first fault
strikes in the first step, the second in the second one, as soon as the engine that they strike has requests:

kill    SIGKILL for the engine       freeze  SIGSTOP for it       raise   its next pass raises
"""

import functools
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "trl")]

import das  # noqa: E402
from das.cluster.cluster import Cluster  # noqa: E402

SILENT_S = 20.0


def fail(engine: Any) -> None:
    """Let the next pass of an engine raise an error. Called in its process."""

    def step() -> None:
        raise RuntimeError("a fault that a test put here")

    engine.llm.llm_engine.step = step


def plant(faults: Sequence[str]) -> None:
    """Let each fault strike in its rollout of the clusters of this process, as soon as an engine has requests.

    faults: by rollout, counted from 0. "": none strikes.
    """
    original = Cluster._hand_out
    struck: list[Any] = []

    @functools.wraps(original)
    def hand_out(cluster: Cluster, running: Any) -> None:
        begun = [engine for engine in cluster.engines.ready if engine.number in running.began_at]
        fault = ""
        if running not in struck and begun:
            struck.append(running)
            fault = faults[len(struck) - 1] if len(struck) <= len(faults) else ""
        if fault == "raise":
            begun[0].actor.__ray_call__.remote(fail)
        original(cluster, running)
        if fault in ("kill", "freeze"):
            os.kill(begun[0].pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)

    Cluster._hand_out = hand_out  # type: ignore[method-assign]


def main(policy: str, folder: Path, jobs: list[str]) -> None:
    import trl_runs

    trl_runs.COMMON["max_steps"] = 3
    original = Cluster._hand_out
    results = {}
    for job in jobs:
        method, engines, *words = job.split(":")
        Cluster._hand_out = original  # type: ignore[method-assign]
        plant([fault for word in words if word != "distributions" for fault in word.split(",")])
        das.speculate(
            method,
            drafter={"remember": "distributions" if "distributions" in words else "tokens"},
            budget={"name": "fixed", "tokens": 8},
            engine={"max_num_seqs": 8, "max_model_len": 128, "extra": {"num_gpu_blocks_override": 256}},
            cluster={"engines": int(engines), "silent_s": SILENT_S} if int(engines) else None,
        )
        trainer = trl_runs.trainer("GRPO", policy, policy, str(folder / job.replace(":", "_")))
        clusters: list[dict[str, Any]] = []
        finish = trainer.vllm_generation._finish

        def noted(rollout: Any, finish: Any = finish, clusters: Any = clusters) -> None:
            report = rollout.report
            clusters.append({**(report.cluster.plain() if report.cluster else {}), "timeline": report.engines})
            finish(rollout)

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
