"""The cold start learns the solutions alone, with the gradients of all logits at once. It is made once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.policies import smollm2
from experiments.policies.smollm2 import ColdStart, backward, build_cold_start, encode, written_solutions
from experiments.policies.train import IGNORED, collate

FEW = ColdStart(steps=2, tokens_per_step=512, warmup_steps=1)


def test_only_solutions_are_learned(tiny_policy: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    (question, solution), *_ = written_solutions(FEW)
    (example,) = encode([(question, solution)], tokenizer)
    learned = [label for label in example.labels if label != IGNORED]
    assert learned == example.ids[-len(learned) :]
    assert learned[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(learned[:-1]) == solution


def test_chunks_of_logits_change_no_gradient(tiny_policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    ids, labels = collate(encode(written_solutions(FEW)[:3], tokenizer), tokenizer.pad_token_id)
    monkeypatch.setattr(smollm2, "_POSITIONS", 7)
    gradients = []
    for whole in (False, True):
        model = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32)
        if whole:
            loss = model(input_ids=ids, labels=labels).loss
            loss.backward()
        else:
            loss = torch.tensor(backward(model, ids, labels))
        gradients.append([loss, *(parameter.grad for parameter in model.parameters())])
    for chunked, direct in zip(*gradients, strict=True):
        torch.testing.assert_close(chunked, direct.detach(), rtol=1e-4, atol=1e-6)


def test_it_is_made_once_for_the_same_settings(tiny_policy: str, tmp_path: Path) -> None:
    folder, again, other = (
        build_cold_start(Path(tiny_policy), tmp_path, print, replace(FEW, seed=seed)) for seed in (0, 0, 1)
    )
    assert (folder / "model.safetensors").exists()
    assert (folder / "tokenizer_config.json").exists()
    assert again == folder != other
