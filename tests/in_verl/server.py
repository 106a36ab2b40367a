"""verl's vLLMHttpServer and its transfer of weights, in this process, without a trainer: run(METHOD, POLICY, OUT).

METHOD: das, or none, which answers the requests in the opposite order. Four steps of the same prompts, with new weights
before each. OUT gets the responses, by step, problem and sample, and vLLM's counts of each step. vLLM's processes would
import a script again, so `python -c` calls `run`.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import ray
import torch
import yaml
from das_loop import NamedRequests
from prometheus_client import REGISTRY
from safetensors.torch import load_file
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

RECIPE = Path(__file__).parents[2] / "examples" / "verl" / "recipes" / "das.yaml"
STEPS, PROBLEMS, SAMPLES = 4, 4, 4
COUNTS = {
    "vllm:spec_decode_num_draft_tokens_total": "drafted",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted",
}
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


def engine_arguments(method: str) -> dict[str, Any]:
    """The recipe's, with a budget that reads no clock. Only probable tokens are drafted, because a random policy's text
    seldom comes again."""
    rollout = yaml.safe_load(RECIPE.read_text())["actor_rollout_ref"]["rollout"]
    arguments: dict[str, Any] = rollout["engine_kwargs"]["vllm"]
    arguments["additional_config"]["das"]["budget"] = {"name": "fixed", "tokens": 8}
    arguments["additional_config"]["das"]["drafter"]["min_prob"] = 0.5
    if method == "none":
        del arguments["speculative_config"], arguments["additional_config"]
    return arguments


def counts() -> dict[str, int]:
    """vLLM's counters of the engine so far."""
    samples = [sample for family in REGISTRY.collect() for sample in family.samples]
    return {COUNTS[sample.name]: int(sample.value) for sample in samples if sample.name in COUNTS}


class Client:
    """What verl's loops ask for answers; here it asks a server of this process, without Ray."""

    def __init__(self, server: Any):
        self.server = server

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        return await self.server.generate(prompt_ids, sampling_params, request_id)


async def send(server: Any, weights: dict[str, torch.Tensor]) -> None:
    """Give the server new weights, as verl's trainer does."""
    handle = f"ipc:///tmp/rl-colocate-zmq-{os.environ['VERL_RAY_JOB_ID']}-replica-0-rank-0.sock"
    receiving = asyncio.create_task(server.collective_rpc("update_weights_from_ipc", kwargs={"use_shm": True}))
    await asyncio.sleep(0.1)
    sender = BucketedWeightSender(zmq_handle=handle, bucket_size_mb=4, use_shm=True)
    await asyncio.to_thread(lambda: asyncio.run(sender.async_send_weights(iter(weights.items()))))
    await receiving
    await server.clear_kv_cache()


async def roll_out(server: Any, step: int, prompts: list[list[int]], backwards: bool) -> dict[str, Any]:
    """Returns tokens and log-probs by step, problem and sample."""

    async def response(problem: int, sample: int) -> tuple[str, Any]:
        client = NamedRequests(Client(server), 42, step, problem, sample)
        name = f"{step}/{problem}/{sample}"
        answer = await client.generate(name, prompt_ids=prompts[problem], sampling_params=SAMPLING)
        return name, [list(answer.token_ids), list(answer.log_probs)]

    order = [(problem, sample) for problem in range(PROBLEMS) for sample in range(SAMPLES)]
    return dict(await asyncio.gather(*(response(*each) for each in (reversed(order) if backwards else order))))


async def main(method: str, policy: str, out: str) -> None:
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)
    rollout = RolloutConfig(
        name="vllm", dtype="float32", prompt_length=32, response_length=96, max_model_len=128, max_num_seqs=16,
        max_num_batched_tokens=512, enforce_eager=True, free_cache_engine=False, enable_sleep_mode=False,
        tensor_model_parallel_size=1, load_format="dummy", gpu_memory_utilization=0.1, seed=42, n=SAMPLES,
        logprobs_mode="processed_logprobs", engine_kwargs={"vllm": engine_arguments(method)}, disable_log_stats=False,
    )  # fmt: skip
    server = vLLMHttpServer(
        rollout, HFModelConfig(path=policy, tokenizer_path=policy), RolloutMode.HYBRID, [], 0, 0, 1, 1, ""
    )
    os.environ["VERL_RAY_JOB_ID"] = str(os.getpid())  # two clusters of Ray name their jobs alike, and so their sockets
    await server.launch_server()
    drawn = torch.Generator().manual_seed(1)
    prompts = [torch.randint(6, 250, (12,), generator=drawn).tolist() for _ in range(PROBLEMS)]
    base, responses, by_step = load_file(Path(policy) / "model.safetensors"), {}, []
    for step in range(STEPS):
        noise = torch.Generator().manual_seed(step)
        await send(server, {
            name: tensor + 1e-3 * step * tensor.abs().mean() * torch.randn(tensor.shape, generator=noise)
            for name, tensor in base.items()
        })  # fmt: skip
        await server.set_global_steps(step)
        before = counts()
        responses |= await roll_out(server, step, prompts, method == "none")
        by_step.append({name: count - before.get(name, 0) for name, count in counts().items()})
    await send(server, base)  # new weights end the last rollout
    Path(out).write_text(json.dumps({"responses": responses, "counts": by_step}))
    server.engine.shutdown()


def run(method: str, policy: str, out: str) -> None:
    """Do all of it, and end this process, in which uvicorn's task is still there."""
    asyncio.run(main(method, policy, out))
    os._exit(0)
