"""verl 0.9.1 with das by examples/verl, on a CPU. CI has no time for verl's environment (`make verl`): run nightly."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from conftest import sharpened
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parents[3]
HERE, RECIPE = ROOT / "tests" / "nightly" / "in_verl", ROOT / "examples" / "verl"
PYTHON = ROOT / ".verl" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="verl is not installed: make verl (examples/verl; make nightly)"),
]
LIMIT_S = 900  # a run that takes longer hangs
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"},
    "PYTHONPATH": os.pathsep.join(map(str, (HERE, RECIPE, ROOT))),
    "VERL_USE_EXTERNAL_MODULES": "cpu_platform",
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",  # verl has FSDP for cuda and npu only; on the platform cpu it builds tensors there
    "VLLM_LOGGING_LEVEL": "WARN",  # verl's own setting
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_niceness": "0",  # Ray's 15 starves its workers beside another process
    "RAY_memory_monitor_refresh_ms": "0",
}


@pytest.fixture(scope="module")
def policy(repetitive_policy: str, made_once: Callable[..., Path]) -> Path:
    """The repetitive policy, sharper still, with Qwen's name for the end of a turn, which verl asks for."""

    def make(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for file in Path(repetitive_policy).iterdir():
            content = file.read_bytes()
            is_text = file.suffix != ".safetensors"
            (folder / file.name).write_bytes(content.replace(b"<|end|>", b"<|im_end|>") if is_text else content)
        assert "<|im_end|>" in AutoTokenizer.from_pretrained(folder).get_vocab()
        sharpened(Path(sharpened(folder)))

    return made_once("policy_for_verl", make)


def ended(*command: str | Path, log: Path, record: Path) -> str:
    """What a program printed in verl's environment, once it has ended well. record: see recording_loop.py."""
    with log.open("wb") as file:
        environment = ENVIRONMENT | {"RECORD": str(record)}
        run = subprocess.Popen([PYTHON, *command], cwd=ROOT, env=environment, stdout=file, stderr=file)
    try:
        assert run.wait(LIMIT_S) == 0, log.read_text(errors="replace")[-6000:]
    finally:
        if run.poll() is None:
            for process in (*psutil.Process(run.pid).children(recursive=True), run):
                process.kill()
    return log.read_text(errors="replace")


E = "actor_rollout_ref.rollout.engine_kwargs.vllm"
TRAINER = [
    "--config-dir", "examples/verl", "+recipes=das",
    "algorithm.adv_estimator=grpo", "data.train_batch_size=4", "data.shuffle=false", "data.max_prompt_length=128",
    "data.max_response_length=64", "data.dataloader_num_workers=0", "actor_rollout_ref.model.use_remove_padding=false",
    "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.actor.strategy=fsdp2", "actor_rollout_ref.actor.fsdp_config.strategy=fsdp2",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false", "actor_rollout_ref.actor.use_torch_compile=false",
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.actor.optim.lr=1e-4", "actor_rollout_ref.actor.use_kl_loss=false",
    "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.rollout.dtype=float32",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1", "actor_rollout_ref.rollout.enforce_eager=true",
    "actor_rollout_ref.rollout.free_cache_engine=false", "+actor_rollout_ref.rollout.enable_sleep_mode=false",
    "actor_rollout_ref.rollout.max_model_len=192", "actor_rollout_ref.rollout.max_num_seqs=16",
    "actor_rollout_ref.rollout.max_num_batched_tokens=512", "actor_rollout_ref.rollout.gpu_memory_utilization=0.1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4", "actor_rollout_ref.rollout.agent.num_workers=1",
    "actor_rollout_ref.rollout.agent.default_agent_loop=recording",
    f"actor_rollout_ref.rollout.agent.agent_loop_config_path={HERE / 'loops.yaml'}",
    # vLLM 0.32 skips a tied lm_head that comes in another bucket than the embedding; here all come in one.
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=64",
    f"+{E}.enforce_eager=true", "reward.num_workers=1",
    f"reward.custom_reward_function.path={HERE / 'reward.py'}", "trainer.device=cpu", "trainer.nnodes=1",
    "trainer.n_gpus_per_node=1", "trainer.logger=[console]", "trainer.val_before_train=false", "trainer.test_freq=-1",
    "trainer.save_freq=-1", "trainer.resume_mode=disable", "trainer.total_epochs=2", "trainer.total_training_steps=2",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1", "ray_kwargs.ray_init.num_cpus=16",
    "+ray_kwargs.ray_init.num_gpus=1", "+ray_kwargs.ray_init.include_dashboard=false",
    "+ray_kwargs.ray_init.object_store_memory=500000000",
]  # fmt: skip


def train(method: str, policy: Path, folder: Path) -> tuple[dict[str, Any], str]:
    """Two steps of GRPO under `das run`. Returns what each sample got, by step, row and sample, and the last line."""
    folder.mkdir()
    rows = [
        {
            "data_source": "made",
            "prompt": [{"role": "user", "content": f"what is {index} + {index}?"}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index},
        }
        for index in range(4)
    ]
    pd.DataFrame(rows).to_parquet(folder / "train.parquet")
    log, record = folder / "log", folder / "record.jsonl"
    das_run = ["-m", "das", "run", "--method", method, "--set", "budget.name=fixed", "--set", "budget.tokens=8"]
    files = [f"data.{kind}_files={folder / 'train.parquet'}" for kind in ("train", "val")]
    own = [*TRAINER, *files, f"actor_rollout_ref.model.path={policy}"]
    command = [*das_run, "--", PYTHON, "-m", "verl.trainer.main_ppo", *own]
    printed = ended(*command, log=log, record=record)
    recorded = [json.loads(line) for line in record.read_text().splitlines()]
    return {str(row["sample"]): row["tokens"] for row in recorded}, printed.splitlines()[-1]


def test_trainer(policy: Path, tmp_path: Path) -> None:
    """verl's whole trainer, two steps on the same four problems: the same responses with drafts and without."""
    none, _ = train("none", policy, tmp_path / "none")
    das, last = train("das", policy, tmp_path / "das")
    assert len(das) == 32
    assert das == none
    assert "drafted tokens were accepted" in last
