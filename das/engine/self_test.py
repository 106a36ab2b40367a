"""Roll out a model without and with drafts, to check that tokens and log-probs are equal and that drafts are accepted.

The model is the caller's, or a tiny one with random weights. `run_apart` (das/engine/checked_policies.py) does it in a
process of its own, so that neither a crash nor vLLM's environment reaches the caller.
"""

import gc
import json
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from das.general.files import write_text

VOCABULARY = 256
PROMPTS, SIBLINGS, TOKENS, ROUNDS = 3, 4, 48, 2
CACHE_BYTES = 2**28  # for keys and values: however little memory is free, and however large the policy


def make_model(folder: Path) -> None:
    """Write a Qwen3 of some 100,000 random parameters, sharp enough that its texts have something in common."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        intermediate_size=128,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = Qwen3ForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.normal_(0.0, 0.15)
    model.model.norm.weight.data.mul_(3.0)  # sharper: texts repeat themselves
    model.save_pretrained(folder)


def rolled_out(policy: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Roll out several rounds. Returns all token ids and log-probs, how many tokens were drafted and accepted, and the
    policy's architecture and type.

    Half of the seeds are the same in every round; the others are new. policy: see `compare`.
    """
    from vllm import SamplingParams
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    from das.engine.build import build_engine
    from das.engine.rollouts.rollout import RolloutRequest, roll_out
    from das.engine.settings import EngineSettings

    settings = EngineSettings(
        model=policy["model"],
        method=method,
        budget={"name": "fixed", "tokens": 8},
        max_model_len=128,
        max_num_seqs=PROMPTS * SIBLINGS,
    )
    llm = build_engine(settings, **{**policy, "skip_tokenizer_init": True, "kv_cache_memory_bytes": CACHE_BYTES})
    generator = random.Random(0)
    prompts = [[generator.randrange(2, VOCABULARY) for _ in range(8)] for _ in range(PROMPTS)]
    requests = [(problem, sibling) for problem in range(PROMPTS) for sibling in range(SIBLINGS)]
    params = SamplingParams(temperature=0.7, max_tokens=TOKENS, ignore_eos=True, logprobs=0)
    tokens, logprobs, drafted, accepted = [], [], 0, 0
    for tick in range(ROUNDS):
        request = RolloutRequest(
            [{"prompt_token_ids": prompts[problem]} for problem, _ in requests],
            params,
            [f"problem {problem}" for problem, _ in requests],
            [100 * problem + sibling + (1000 * tick if sibling % 2 else 0) for problem, sibling in requests],
            step=tick,
            next_history_tick=tick + 1,
        )
        outputs, rollout = roll_out(llm, request)
        tokens += rollout.responses
        logprobs += [output.outputs[0].cumulative_logprob for output in outputs]
        drafted += rollout.report.drafted
        accepted += rollout.accepted
    of_engine = llm.llm_engine.model_config
    llm.llm_engine.engine_core.shutdown()
    del llm
    cleanup_dist_env_and_memory()
    gc.collect()
    return {
        "tokens": tokens,
        "logprobs": logprobs,
        "drafted": drafted,
        "accepted": accepted,
        "architecture": of_engine.architecture,
        "dtype": str(of_engine.dtype).removeprefix("torch."),
    }


def compare(folder: Path, policy: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Roll out the same requests without and with drafts. Returns the comparison.

    policy: the model, and further arguments of vllm.LLM; None: a tiny model, which is written into `folder`.
    """
    from vllm.platforms import current_platform

    from das.engine.install import install

    start = time.perf_counter()
    on_cpu = current_platform.is_cpu()
    install(exact="bits")
    if policy is None:
        make_model(folder / "model")
        policy = {"model": str(folder / "model"), "dtype": "float32" if on_cpu else "bfloat16"}
    elif on_cpu:
        policy = {"dtype": "float32", **policy}  # equal tokens are promised in this type alone
    plain, drafting = (rolled_out(policy, method) for method in ("none", "das"))
    pairs = (zip(found["tokens"], found["logprobs"], strict=True) for found in (plain, drafting))
    differing = sum(one != other for one, other in zip(*pairs, strict=True))
    return {
        "requests": len(plain["tokens"]),
        "tokens": sum(map(len, plain["tokens"])),
        "differing_requests": differing,
        "drafted": drafting["drafted"],
        "accepted": drafting["accepted"],
        "architecture": drafting["architecture"],
        "dtype": drafting["dtype"],
        "device": current_platform.get_device_name(),
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    """Write the comparison into the file given as the first argument. The second one is the policy as JSON, if the
    caller has one."""
    file, *policy = sys.argv[1:]
    write_text(Path(file), json.dumps(compare(Path(file).parent, *map(json.loads, policy))))


if __name__ == "__main__":
    main()
