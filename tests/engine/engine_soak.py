"""An engine that is used for long by callers who announce nothing: does its memory stay bounded?

python tests/engine/engine_soak.py 30      minutes. Prints a row every ten seconds, then the verdict.

The callers bring neither seeds nor problem ids and announce no rollouts. Prompts come and go, some requests are
aborted, the cache is reset, and sometimes new weights arrive. The bounds are lowered, so that a minute reaches them:
with the bounds of a real engine that would take days.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

LIVE = 16  # requests at once
PROBLEMS = 64  # prompts that come back, beside those that come once
TOKENS_PER_TICK, MAX_PASSES, MAX_PROMPTS, MAX_PROBLEMS = 2**11, 64, 64, 64


def lower_the_bounds() -> None:
    """For engines that are built afterwards, in this process."""
    import das.budget.lengths
    import das.engine.rollouts.rollout_record
    import das.engine.worker
    import das.verify.seeds

    das.engine.rollouts.rollout_record.TOKENS_PER_TICK = TOKENS_PER_TICK
    das.engine.worker.MAX_PASSES = MAX_PASSES
    das.verify.seeds.DefaultSeeds.__init__.__defaults__ = (0, MAX_PROMPTS)
    das.budget.lengths.ByProblem.__init__.__defaults__ = (MAX_PROBLEMS,)


def sizes(worker: Any) -> dict[str, int]:
    """How much the engine's parts of das hold. collective_rpc calls it in the worker."""
    runner = worker.das_runner
    proposer, seeds = runner.drafter, runner.sampler.seeds.defaults
    drafter = proposer.draft_round.drafter
    return {
        "history_tokens": drafter.history_tokens,
        "history_tick": drafter.history_tick,
        "index_kib": drafter.index_bytes // 1024,
        "problems": len(drafter._stores),
        "lengths": len(proposer.lengths._problems),
        "passes": len(runner.meter.step_time_s) + len(proposer._record.measured_s),
        "requests": len(runner.meter.requests) + len(proposer._record.predicted_length) + len(proposer.requests.live),
        "live": len(proposer.requests.live),  # of an LLM, those that have ended leave with the next pass
        "prompts": len(seeds._requests_of),
        "seeds": len(runner.sampler.seeds._seeded),
        "weight_version": seeds.weight_version,
    }


def new_weights(worker: Any) -> None:
    """As a trainer loads them: straight into the model, and nobody is told."""
    model = worker.model_runner.get_model()
    model.load_weights([("model.norm.weight", dict(model.named_parameters())["model.norm.weight"].clone())])


def soak(llm: Any, seconds: float) -> Iterator[dict[str, float]]:
    """Use the engine for some seconds. Yields what it holds after each round of requests, with the process's memory."""
    from vllm import SamplingParams

    engine, process, rng = llm.llm_engine, psutil.Process(), np.random.default_rng(0)
    known = [rng.integers(5, 250, 12).tolist() for _ in range(PROBLEMS)]
    began, rounds, tokens = time.perf_counter(), 0, 0
    while (now := time.perf_counter() - began) < seconds:
        rounds += 1
        for i in range(LIVE):
            prompt = known[int(rng.integers(PROBLEMS))] if i % 2 else rng.integers(5, 250, 12).tolist()
            max_tokens = (
                1 if rounds % 4 == 0 else int(rng.integers(1, 120))
            )  # every fourth round scores, one token each
            params = SamplingParams(max_tokens=max_tokens, temperature=0.5, detokenize=False)
            engine.add_request(f"{rounds}-{i}", {"prompt_token_ids": prompt}, params)
        aborted = rng.integers(LIVE, size=2)
        for step in range(10**9):
            if not engine.has_unfinished_requests():
                break
            for output in engine.step():
                tokens += len(output.outputs[0].token_ids) if output.finished else 0
            if step == 5:
                engine.abort_request([f"{rounds}-{i}" for i in aborted])
        if rounds % 7 == 0:
            llm.reset_prefix_cache()
        if rounds % 8 == 0:
            llm.collective_rpc(new_weights)
        memory = process.memory_info()
        anonymous_mib = (memory.rss - memory.shared) / 2**20
        yield {"minutes": now / 60, "tokens": tokens, "anonymous_mib": anonymous_mib, **llm.collective_rpc(sizes)[0]}


def main(minutes: float) -> None:
    """Soak an engine with a random policy, and print what it holds."""
    from conftest import Engines, random_policy

    from analysis.soak import growth

    lower_the_bounds()
    with tempfile.TemporaryDirectory() as folder:
        llm = Engines().build(
            random_policy(Path(folder)), method="das", drafter={"window": 4}, budget={"name": "marginal"}
        )
        rows, shown = [], -1.0
        for row in soak(llm, minutes * 60):
            rows.append(row)
            if row["minutes"] - shown >= 1 / 6:
                shown = row["minutes"]
                print("  ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
    warm = [row for row in rows if row["minutes"] >= minutes / 3]
    times, memory = (np.array([row[name] for row in warm]) for name in ("minutes", "anonymous_mib"))
    grown = growth(times, np.arange(len(warm)), memory)
    print(
        f"{len(rows)} rounds, {rows[-1]['tokens']:.0f} tokens; after a third of the time: anonymous memory "
        f"{grown['median']:.1f} MiB, {grown['percent_per_hour']:+.3f} % per hour; most history "
        f"{max(row['history_tokens'] for row in warm):.0f} tokens, "
        f"index {max(row['index_kib'] for row in warm):.0f} KiB"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("minutes", type=float)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(parser.parse_args().minutes)
