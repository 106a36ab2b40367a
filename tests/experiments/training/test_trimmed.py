"""Forward passes without padding: the same losses and gradients as TRL's, and fewer tokens computed."""

from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from experiments.training.trainer import SpeculativeGRPOTrainer
from experiments.training.trimmed import LEAST, similar_rows, trimmed

LENGTHS = [3, 40, 9, 11, 8, 25, 10, 12]  # response tokens
PROMPTS = [4, 7, 5, 5, 4, 4, 6, 5]  # prompt tokens
LOSSES = ["grpo", "dapo", "luspo"]  # means over a response, a batch, a sequence


class TrimmedGRPOTrainer(SpeculativeGRPOTrainer):
    """Without an engine."""

    def __init__(self, **kwargs: Any):
        GRPOTrainer.__init__(self, **kwargs)


@pytest.fixture(scope="module")
def trainer(tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> TrimmedGRPOTrainer:
    """With a KL term, so that the reference policy is asked too."""
    args = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trainer")),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        beta=0.1,
        report_to="none",
    )
    rows = Dataset.from_list([{"prompt": "p"}] * 8)
    made = TrimmedGRPOTrainer(model=tiny_policy, reward_funcs=lambda **columns: [0.0], args=args, train_dataset=rows)
    made.current_gradient_accumulation_steps = 2  # transformers sets it when training begins
    made.model.train()
    return made


def batch(vocabulary: int) -> dict[str, torch.Tensor]:
    """What TRL generates and scores in a step: prompts padded on the left, responses on the right."""
    random = torch.Generator().manual_seed(0)
    rows = len(LENGTHS)
    prompts, responses = max(PROMPTS), max(LENGTHS)
    prompt_mask = (torch.arange(prompts) >= prompts - torch.tensor(PROMPTS)[:, None]).long()
    completion_mask = (torch.arange(responses) < torch.tensor(LENGTHS)[:, None]).long()
    shape = (rows, responses)
    return {
        "prompt_ids": torch.randint(vocabulary, (rows, prompts), generator=random) * prompt_mask,
        "prompt_mask": prompt_mask,
        "completion_ids": torch.randint(vocabulary, shape, generator=random) * completion_mask,
        "completion_mask": completion_mask,
        "advantages": torch.randn(rows, generator=random),
        "num_items_in_batch": completion_mask.sum(),
        "importance_sampling_ratio": 1 + 0.1 * torch.rand(shape, generator=random) * completion_mask,
    }


def scored(trainer: TrimmedGRPOTrainer, trim: bool) -> dict[str, torch.Tensor]:
    """The batch with the log-probs of the old and the reference policy, four rows at a time."""
    trainer.trim_padding = trim
    made = batch(trainer.model.config.vocab_size)
    ids = torch.cat([made["prompt_ids"], made["completion_ids"]], dim=1)
    mask = torch.cat([made["prompt_mask"], made["completion_mask"]], dim=1)
    with torch.no_grad():
        for name, model in (("old_per_token_logps", trainer.model), ("ref_per_token_logps", trainer.ref_model)):
            logps, _, _ = trainer._get_per_token_logps_and_entropies(
                model, ids, mask, made["completion_ids"].size(1), batch_size=4
            )
            made[name] = logps
    made["old_per_token_logps"] = made["old_per_token_logps"] + 0.1 * made["advantages"][:, None]  # an older policy
    return made


def loss_and_gradients(trainer: TrimmedGRPOTrainer, trim: bool) -> tuple[float, torch.Tensor]:
    inputs = scored(trainer, trim)
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.item(), torch.cat([weight.grad.flatten() for weight in trainer.model.parameters()])


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("corrected", [False, True])
def test_losses_and_gradients_are_trls(trainer: TrimmedGRPOTrainer, loss_type: str, corrected: bool) -> None:
    trainer.loss_type = loss_type
    trainer.importance_sampling_level = "sequence" if loss_type == "luspo" else "token"
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = corrected
    (theirs, their_gradients), (ours, our_gradients) = (loss_and_gradients(trainer, trim) for trim in (False, True))
    assert abs(theirs) > 1e-3
    assert ours == pytest.approx(theirs, rel=1e-4)
    difference = (our_gradients - their_gradients).norm() / their_gradients.norm()
    assert 0 < difference < 1e-4  # above 0: the passes did differ


@pytest.fixture
def seen(trainer: TrimmedGRPOTrainer, monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of the ids in all passes of the model."""
    shapes: list[torch.Size] = []
    forward = trainer.model.forward

    def noted(*args: Any, **kwargs: Any) -> Any:
        shapes.append(kwargs["input_ids"].shape)
        return forward(*args, **kwargs)

    monkeypatch.setattr(trainer.model, "forward", noted)
    return shapes


def test_few_tokens_are_computed(trainer: TrimmedGRPOTrainer, seen: list[torch.Size]) -> None:
    counts = {}
    for trim in (False, True):
        inputs = scored(trainer, trim)
        seen.clear()
        trainer._compute_loss(trainer.model, inputs)
        counts[trim] = sum(shape.numel() for shape in seen)
    assert counts[False] == len(LENGTHS) * (max(LENGTHS) + max(PROMPTS))
    assert counts[True] <= (sum(LENGTHS) + sum(PROMPTS)) / LEAST + len(LENGTHS) * (max(PROMPTS) - min(PROMPTS))


def test_several_ranks_run_equally_many_passes(
    trainer: TrimmedGRPOTrainer, seen: list[torch.Size], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that shard the weights wait for each other in every pass."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    scored(trainer, True)
    assert [shape[0] for shape in seen] == [4, 4]


def test_rows_of_similar_length_share_a_pass() -> None:
    assert similar_rows([100, 800, 90, 95, 300], at_most=16, least=0.8) == [[1], [4], [0, 3, 2]]
    assert similar_rows([9, 1, 5, 2], at_most=4, least=0.0) == [[0, 2, 3, 1]], "a mixture of experts"
    assert similar_rows([100, 800, 90, 95, 300], at_most=2, least=0.8) == [[1], [4], [0, 3], [2]]


def test_columns_that_remain() -> None:
    """A prompt of 2 tokens and responses of 2 and, as TRL masks truncated ones, of none."""
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0]])
    ids = torch.arange(16).view(2, 8)
    assert [part.tolist() for part in trimmed(ids, mask, 4, 1)[:2]] == [ids[:, 2:6].tolist(), mask[:, 2:6].tolist()]
    assert trimmed(ids, mask, 4, 1)[2] == 2
    assert trimmed(ids[1:], mask[1:], 4, 1)[0].tolist() == [[11, 12]]  # a response of nothing keeps a column
    assert trimmed(ids, mask, 4, 3)[0].shape == (2, 6)  # 3 of the prompts and 3 of the responses
