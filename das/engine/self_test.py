"""Roll out a tiny random model without and with drafts, to check that tokens are equal and that drafts are accepted.

`python -m das doctor` runs it in a process of its own, so that neither a crash nor vLLM's environment reaches the
caller. Nothing is downloaded: the model has random weights and no tokenizer.
"""

import gc
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

VOCABULARY = 256
PROMPTS, SIBLINGS, TOKENS, ROUNDS = 3, 4, 48, 2


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


def roll_out(model: Path, method: str, on_cpu: bool) -> dict[str, Any]:
    """Roll out several rounds. Returns all token ids, and how many tokens were drafted and accepted.

    Half of the seeds are the same in every round; the others are new.
    """
    from vllm import LLM, SamplingParams
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    import das

    llm = LLM(
        str(model),
        skip_tokenizer_init=True,
        dtype="float32" if on_cpu else "bfloat16",
        enforce_eager=True,
        gpu_memory_utilization=0.1,
        max_model_len=128,
        max_num_seqs=PROMPTS * SIBLINGS,
        **das.engine_arguments(method, budget={"name": "fixed", "tokens": 8}),
    )
    generator = random.Random(0)
    prompts = [[generator.randrange(2, VOCABULARY) for _ in range(8)] for _ in range(PROMPTS)]
    requests = [(problem, sibling) for problem in range(PROMPTS) for sibling in range(SIBLINGS)]
    tokens, passes, drafted = [], 0, 0
    for tick in range(ROUNDS):
        params = [
            SamplingParams(
                seed=100 * problem + sibling + (1000 * tick if sibling % 2 else 0),
                temperature=0.7,
                max_tokens=TOKENS,
                ignore_eos=True,
                detokenize=False,
                extra_args={"das_problem": f"problem {problem}"},
            )
            for problem, sibling in requests
        ]
        outputs = llm.generate([{"prompt_token_ids": prompts[i]} for i, _ in requests], params, use_tqdm=False)
        (report,) = llm.collective_rpc("das_end_rollout", args=(tick + 1,))
        tokens += [list(output.outputs[0].token_ids) for output in outputs]
        passes += report["passes"]
        drafted += report["drafted"]
    llm.llm_engine.engine_core.shutdown()
    del llm
    cleanup_dist_env_and_memory()
    gc.collect()
    return {"tokens": tokens, "drafted": drafted, "accepted": sum(map(len, tokens)) - passes}


def compare(folder: Path) -> dict[str, Any]:
    """Roll out the same requests without and with drafts. Returns the comparison, for identity.json."""
    from vllm.platforms import current_platform

    import das

    start = time.perf_counter()
    on_cpu = current_platform.is_cpu()
    das.install(batch_invariant=not on_cpu)
    make_model(folder / "model")
    plain, drafting = (roll_out(folder / "model", method, on_cpu) for method in ("none", "das"))
    differing = sum(one != other for one, other in zip(plain["tokens"], drafting["tokens"], strict=True))
    return {
        "requests": len(plain["tokens"]),
        "tokens": sum(map(len, plain["tokens"])),
        "differing_requests": differing,
        "drafted": drafting["drafted"],
        "accepted": drafting["accepted"],
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    """Write the missing hooks, and if none is missing the comparison, into the folder given as the first argument."""
    from das.engine.contract.hook_check import missing_hooks

    folder = Path(sys.argv[1])
    missing = missing_hooks()
    (folder / "hooks.json").write_text(json.dumps(missing))
    if not missing:
        (folder / "identity.json").write_text(json.dumps(compare(folder)))


if __name__ == "__main__":
    main()
