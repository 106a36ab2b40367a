"""vLLM's AsyncLLM, driven as the server of verl drives it: the same tokens with drafts and without.

What is imitated, from verl-project/verl at commit 1dda039b (0.10.0.dev, 2026-08-22), verl/workers/rollout/vllm_rollout:
vllm_async_server.py `launch_server` (engine arguments become a command line of `vllm serve`), `run_server` (AsyncLLM
from its configuration, an RPC that wraps compute_logits), `generate` (token ids in, no seed, log-probs of the sampled
tokens), `abort_all_requests`, `clear_kv_cache` and `resume_generation`; utils.py `update_weights_from_ipc` (buckets,
then process_weights_after_loading). Ray, the transport of weights and sleep mode are left out.
"""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from das.engine.build import engine_arguments

pytestmark = pytest.mark.slow

MAX_MODEL_LEN = 200
GROUPS, SIBLINGS = 5, 4
STUCK_S = 600  # a training takes 20 on a quiet machine


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(6, 250, int(rng.integers(4, 20))).tolist() for _ in range(GROUPS)]


def engine_kwargs(method: str) -> dict[str, Any]:
    """What a user writes under actor_rollout_ref.rollout.engine_kwargs.vllm (docs/vllm.md)."""
    arguments = engine_arguments(method, {"min_prob": 0.005}, {"name": "fixed", "tokens": 8})
    del arguments["async_scheduling"], arguments["logprobs_mode"]  # verl leaves out what is false, and sets the other
    return {**arguments, "no_async_scheduling": True}


def verl_command_line(policy: str, method: str) -> list[str]:
    """Engine arguments as a command line: true is a flag, false and None are left out, a dict is JSON."""
    arguments = {
        "dtype": "float32",
        "load_format": "auto",
        "skip_tokenizer_init": False,
        "distributed_executor_backend": "uni",  # verl: mp
        "worker_extension_cls": "verl_worker.Extension",
        "trust_remote_code": False,
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": 16,
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": 512,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "enforce_eager": True,
        "gpu_memory_utilization": 0.1,
        "disable_log_stats": True,
        "tensor_parallel_size": 1,
        "seed": 7,
        "override_generation_config": json.dumps({"temperature": 1.0, "top_k": -1, "top_p": 1.0}),
        "scheduling_policy": "fcfs",
        **engine_kwargs(method),
    }
    line = ["--model", policy]
    for name, value in arguments.items():
        if value is True:
            line.append(f"--{name}")
        elif value is not False and value is not None:
            line += [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return line


def build(policy: str, method: str) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    line = verl_command_line(policy, method)
    arguments = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(line)
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)
    return AsyncLLM.from_vllm_config(config, usage_context=UsageContext.OPENAI_API_SERVER, disable_log_stats=True)


async def generate(
    engine: Any, prompt: list[int], name: str, begun: asyncio.Semaphore
) -> tuple[list[int], list[float], str]:
    """One request of an agent loop, from token ids to token ids. It brings no seed and no problem id.

    begun: released at the first output.
    """
    from vllm import SamplingParams, TokensPrompt

    params = SamplingParams(
        max_tokens=min(120, MAX_MODEL_LEN - len(prompt)), temperature=0.7, top_p=1.0, top_k=-1, repetition_penalty=1.0,
        logprobs=0, ignore_eos=False,
    )  # fmt: skip
    outputs = []
    async for part in engine.generate(TokensPrompt(prompt_token_ids=prompt), params, name, priority=0):
        outputs.append(part)
        if len(outputs) == 1:
            begun.release()
    if not outputs or not outputs[-1].outputs:
        return [], [], "abort"
    (response,) = outputs[-1].outputs
    tokens = list(response.token_ids)
    logprobs = [at[token].logprob for at, token in zip(response.logprobs, tokens, strict=True)]
    return tokens, logprobs, response.finish_reason


async def groups(engine: Any, step: int, begun: asyncio.Semaphore | None = None) -> list[Any]:
    """The responses to all prompts, SIBLINGS to each. Siblings are interchangeable, so they are sorted."""
    names = [(i, k) for i in range(GROUPS) for k in range(SIBLINGS)]
    begun = begun or asyncio.Semaphore(0)
    answers = await asyncio.gather(*(generate(engine, prompts()[i], f"{step}-{i}-{k}", begun) for i, k in names))
    return [sorted(answers[i * SIBLINGS : (i + 1) * SIBLINGS]) for i in range(GROUPS)]


async def training(policy: str, others: list[Path], method: str) -> tuple[list[Any], dict[str, int]]:
    """Rollouts, with the weights replaced between them while requests run."""
    engine = build(policy, method)
    try:
        await engine.reset_mm_cache()
        await engine.collective_rpc("mask_vocabulary", kwargs={"vocab_size": 280})
        found: list[Any] = [await groups(engine, 0), await groups(engine, 1)]
        for step, weights in enumerate(others, 2):
            begun = asyncio.Semaphore(0)
            running = asyncio.create_task(groups(engine, -step, begun))
            for _ in range(GROUPS * SIBLINGS):  # a request that came after the pause would wait until its end
                await begun.acquire()
            await engine.pause_generation()  # aborts what runs, and clears the prefix cache
            ends = [answer[2] for group in await running for answer in group]
            assert "abort" in ends, "nothing was running: the test proves nothing"
            await engine.collective_rpc("update_weights_from_file", args=(str(weights),))
            await engine.reset_prefix_cache(reset_connector=True)
            await engine.resume_generation()
            found.append(await groups(engine, step))
        return found, (await engine.collective_rpc("counted"))[0]
    finally:
        engine.shutdown()


def run_training(policy: str, others: list[Path], method: str) -> tuple[list[Any], dict[str, int]]:
    return asyncio.run(asyncio.wait_for(training(policy, others, method), STUCK_S))


@pytest.fixture
def other_weights(repetitive_policy: str, tmp_path: Path) -> list[Path]:
    """Two files of other weights for the policy."""
    from safetensors.torch import load_file, save_file

    paths = []
    for step in (1, 2):
        weights = load_file(Path(repetitive_policy) / "model.safetensors")
        paths.append(tmp_path / f"step{step}.safetensors")
        weights = {name: tensor * (1 + 0.05 * step) if tensor.ndim == 2 else tensor for name, tensor in weights.items()}
        save_file(weights, paths[-1])
    return paths


def test_drafts_change_nothing(
    repetitive_policy: str, other_weights: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
    drafted, counted = run_training(repetitive_policy, other_weights, "das")
    plain, _ = run_training(repetitive_policy, other_weights, "none")
    assert [tokens_of(step) for step in drafted] == [tokens_of(step) for step in plain]
    assert drafted == plain  # log-probs and ends too
    assert counted["weight_version"] == 2
    assert counted["drafted"] > 50
    assert len({str(step) for step in drafted}) == 4, "two rollouts were equal: old weights, or the same noise"
    fresh = Path(shutil.copytree(repetitive_policy, tmp_path / "fresh"))
    shutil.copy(other_weights[-1], fresh / "model.safetensors")
    assert log_probs_hold(fresh, drafted[-1])


def tokens_of(step: list[Any]) -> list[list[list[int]]]:
    return [[tokens for tokens, _, _ in group] for group in step]


def log_probs_hold(policy: Path, step: list[Any]) -> bool:
    """Whether the policy in this folder gives the first response of each group the log-probs that the engine said."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    for prompt, group in zip(prompts(), step, strict=True):
        tokens, log_probs, _ = group[0]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1, :280] / 0.7
        expected = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
        if not torch.allclose(expected, torch.tensor(log_probs), atol=1e-3):
            return False
    return True
