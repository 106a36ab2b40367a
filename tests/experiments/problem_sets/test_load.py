"""From files to a trainer's rows: formats, prompt lengths, counts, and one clear line for every error."""

import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from composed import composed
from omegaconf import DictConfig
from refusals import one_line
from transformers import AutoTokenizer

from experiments import problem_sets
from experiments.arm.data import dataset
from experiments.run.errors import UserError
from experiments.settings.config import run_config

CARD = "---\nconfigs:\n- config_name: main\n  data_files:\n  - {split: train, path: rows.jsonl}\n---\n"
ROWS = [{"question": f"What is {'1 + ' * i}1?", "answer": f"So\n#### {i + 1}"} for i in range(12)]


def config_of(*overrides: str) -> DictConfig:
    return composed("data=gsm8k", "trainer.max_completion_length=64", *overrides)


def written(folder: Path, kind: str, rows: Any) -> Path:
    path = folder / f"rows{kind}"
    if kind == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    text = "\n".join(map(json.dumps, rows)) + "\n" if ".jsonl" in kind else json.dumps(rows)
    path.write_bytes(gzip.compress(text.encode()) if kind.endswith(".gz") else text.encode())
    return path


def test_formats_and_orders_give_the_same_rows(tiny_policy: str, tmp_path: Path) -> None:
    config = config_of("data.problems=5")
    seen = []
    for i, kind in enumerate(problem_sets.KINDS):
        config.data.path = str(written(tmp_path, kind, ROWS[i:] + ROWS[:i]))
        seen.append(dataset(run_config(config), tiny_policy).to_list())
    assert len(seen[0]) == 5
    assert all(rows == seen[0] for rows in seen)


def test_long_prompts_are_passed_over_with_a_count(tiny_policy: str, tmp_path: Path) -> None:
    path = written(tmp_path, ".jsonl", [*ROWS, ROWS[0], {"question": "x", "answer": "####"}])
    config = config_of(f"data.path={path}", "engine.max_model_len=170")
    notes: list[str] = []
    rows = dataset(run_config(config), tiny_policy, notes.append)
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    prompts = [tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True) for row in rows]
    lengths = [len(prompt["input_ids"]) for prompt in prompts]
    assert 2 < len(rows) < 12
    assert max(lengths) <= 170 - 64
    assert notes == [
        f"data gsm8k: {len(rows)} problems of 14 rows; left out: 1 duplicates, 1 without an answer; "
        f"passed over: {12 - len(rows)} longer than 106 tokens"
    ]
    config.data.max_prompt_tokens = 101
    assert len(dataset(run_config(config), tiny_policy)) < len(rows)


def test_arguments_of_the_chat_template_count(tiny_policy: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    tokenizer.chat_template += "{%- if not enable_thinking|default(true) -%}<think></think>{%- endif -%}"
    tokenizer.save_pretrained(tmp_path / "policy")
    path = written(tmp_path, ".jsonl", ROWS)
    size = ["engine.max_model_len=170", f"data.path={path}"]
    thinking = dataset(run_config(config_of(*size)), str(tmp_path / "policy"))
    brief = config_of(*size, "policy=qwen3_8b", "policy.chat_template_kwargs.enable_thinking=false")
    assert brief.trainer.chat_template_kwargs == {"enable_thinking": False}
    assert len(dataset(run_config(brief), str(tmp_path / "policy"))) < len(thinking)


def test_unreadable_answers_are_passed_over(tiny_policy: str, tmp_path: Path) -> None:
    path = written(tmp_path, ".jsonl", [*ROWS, {"question": "?", "answer": "#### \\text{}"}])
    notes: list[str] = []
    dataset(run_config(config_of(f"data.path={path}", "engine.max_model_len=512")), tiny_policy, notes.append)
    assert notes[0].endswith("12 problems of 13 rows; passed over: 1 with an answer that math-verify cannot read")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["data.problems=13"], r"12 problems of 12 rows: too few for data.problems=13"),
        (["engine.max_model_len=70"], "12 longer than 6 tokens: too few .*engine.max_model_len less"),
        (["trainer.per_device_train_batch_size=128", "engine.max_model_len=512"], "a step takes 16"),
    ],
)
def test_too_few(overrides: list[str], says: str, tiny_policy: str, tmp_path: Path) -> None:
    path = written(tmp_path, ".jsonl", ROWS)
    with pytest.raises(UserError, match=says):
        dataset(run_config(config_of("engine.max_model_len=512", f"data.path={path}", *overrides)), tiny_policy)


def test_a_set_of_the_hub_is_read_by_subset_and_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder stands in for a set of the hub: `datasets` takes both by name."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for name, file, content in (("set", "README.md", CARD), ("script", "script.py", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(content)
    written(tmp_path / "set", ".jsonl", ROWS[:3])

    def rows(name: str = "set", subset: str = "main", split: str = "train") -> list[dict[str, str]]:
        hub = {"id": str(tmp_path / name), "subsets": [subset], "split": split, "revision": "main"}
        return list(problem_sets._rows({"path": None, "hub": hub}))

    assert rows() == ROWS[:3]
    for wrong, says in (
        ({"subset": "other"}, "'other' not found"),
        ({"split": "test"}, 'Unknown split "test"'),
        ({"name": "script"}, "scripts are no longer supported"),
    ):
        with one_line(rf"^{tmp_path}/\w+ cannot be loaded: .*{says}.*set data.path=FILE"):
            rows(**wrong)
