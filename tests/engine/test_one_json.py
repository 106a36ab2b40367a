"""`speculative_config` alone makes the engine that all arguments of das make."""

import json
from pathlib import Path
from typing import Any

import pytest
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

import das
from das.drafter import HistoryDrafter
from das.engine.settings import WORKER, das_options
from das.general.errors import EngineError

CPU = {"dtype": "float32", "enforce_eager": True, "max_model_len": 64, "gpu_memory_utilization": 0.1}
OPTIONS: list[dict[str, Any]] = [
    {"method": "das"},
    {"method": "none"},
    {"method": "das", "drafter": {"window": 3}, "budget": {"name": "fixed", "tokens": 8}, "asynchronous": False},
    {"method": "self_draft", "self_draft": "w4", "budget": {"name": "fixed", "tokens": 7}},
]


def made(policy: str, **arguments: Any) -> list[Any]:
    """What an engine's config says of das."""
    config = EngineArgs(policy, **CPU, **arguments).create_engine_config()
    drafts, of_vllm = config.speculative_config, (config.parallel_config, config.model_config, config.scheduler_config)
    parallel, model, scheduler = of_vllm
    return [
        das_options(config),
        drafts and (drafts.method, drafts.model, drafts.num_speculative_tokens),
        (parallel.worker_cls, model.logprobs_mode, scheduler.async_scheduling),
    ]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_one_argument_stands_for_all(options: dict[str, Any], tiny_policy: str) -> None:
    das.install()
    by_one = made(tiny_policy, speculative_config=options)
    assert by_one == made(tiny_policy, **das.engine_arguments(**options))


def test_a_command_line_hands_it_on(tiny_policy: str) -> None:
    """As `vllm serve` and what passes its options through read it."""
    das.install()
    words = ["--model", tiny_policy, "--dtype", "float32", "--max-model-len", "64", "--gpu-memory-utilization", "0.1"]
    words += ["--enforce-eager", "--speculative-config", json.dumps(OPTIONS[2])]
    given = EngineArgs.from_cli_args(EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(words))
    config = given.create_engine_config()
    assert config.parallel_config.worker_cls == WORKER
    assert das_options(config).drafter == {"window": 3}
    assert config.speculative_config.num_speculative_tokens == 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"speculative_config": {"method": "das", "windw": 3}},
            "engine_arguments.. has no option windw: choose drafter, budget, .*, self_draft, speculative",
        ),
        (
            {"worker_cls": "my.Worker", "speculative_config": {"method": "das"}},
            "worker_cls='my.Worker': .*leave it out",
        ),
    ],
)
def test_contradictions_end_in_one_line(arguments: dict[str, Any], said: str, tiny_policy: str) -> None:
    das.install()
    with pytest.raises(EngineError, match=said) as refused:
        made(tiny_policy, **arguments)
    assert "\n" not in str(refused.value)


def test_a_damaged_history_ends_in_one_line(tmp_path: Path, tiny_policy: str) -> None:
    """Read by the worker first, it would end in tracebacks of two processes."""
    das.install()
    history = tmp_path / "history.npz"
    HistoryDrafter().save(history)
    warm = {"method": "das", "drafter": {"warm": str(history)}}
    made(tiny_policy, speculative_config=warm)
    history.write_bytes(history.read_bytes()[:-100])
    with pytest.raises(EngineError, match=r"history.npz: not a readable .npz file") as refused:
        made(tiny_policy, speculative_config=warm)
    assert "\n" not in str(refused.value)


def test_vllms_own_methods_stay_its_own(tiny_policy: str) -> None:
    das.install()
    ngram = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}
    config = EngineArgs(tiny_policy, **CPU, speculative_config=ngram).create_engine_config()
    assert config.parallel_config.worker_cls != WORKER
