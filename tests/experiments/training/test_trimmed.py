"""Forward passes without padding: the same log-probs and gradients as TRL's, and fewer tokens computed."""

from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from experiments.training.trainer import SpeculativeGRPOTrainer
from experiments.training.trimmed import LEAST, similar_rows, trimmed

LENGTHS = [3, 40, 9, 11, 8, 25, 10, 12]  # response tokens
PROMPTS = [4, 7, 5, 5, 4, 4, 6, 5]  # prompt tokens


class TrimmedGRPOTrainer(SpeculativeGRPOTrainer):
    """Without an engine."""

    def __init__(self, **kwargs: Any):
        GRPOTrainer.__init__(self, **kwargs)


@pytest.fixture(scope="module")
def trainer(tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> TrimmedGRPOTrainer:
    folder = str(tmp_path_factory.mktemp("trainer"))
    args = GRPOConfig(output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none")
    rows = Dataset.from_list([{"prompt": "p"}] * 8)
    made = TrimmedGRPOTrainer(model=tiny_policy, reward_funcs=lambda **columns: [0.0], args=args, train_dataset=rows)
    made.model.train()
    return made


def forward(trainer: TrimmedGRPOTrainer, trim: bool, rows: int = 8) -> list[torch.Tensor]:
    """Log-probs and entropies of a batch's response tokens, `rows` rows in a pass, and the gradient of a loss of the
    log-probs. Prompts are padded on the left, responses on the right."""
    random = torch.Generator().manual_seed(0)
    prompts, responses = max(PROMPTS), max(LENGTHS)
    of_prompts = torch.arange(prompts) >= prompts - torch.tensor(PROMPTS)[:, None]
    of_responses = torch.arange(responses) < torch.tensor(LENGTHS)[:, None]
    mask = torch.cat([of_prompts, of_responses], dim=1).long()
    ids = torch.randint(trainer.model.config.vocab_size, mask.shape, generator=random) * mask
    trainer.trim_padding = trim
    trainer.model.zero_grad()
    logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, ids, mask, responses, batch_size=rows, compute_entropy=True
    )
    (logps * torch.randn(logps.shape, generator=random))[of_responses].sum().backward()
    gradients = torch.cat([weight.grad.flatten() for weight in trainer.model.parameters()])
    return [logps[of_responses].detach(), entropies[of_responses], gradients]


def test_log_probs_entropies_and_gradients_are_trls(trainer: TrimmedGRPOTrainer) -> None:
    for theirs, ours in zip(forward(trainer, False), forward(trainer, True), strict=True):
        assert 0 < (ours - theirs).norm() / theirs.norm() < 1e-4  # above 0: the passes did differ


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
    counts = []
    for trim in (False, True):
        forward(trainer, trim)
        counts.append(sum(shape.numel() for shape in seen))
        seen.clear()
    assert counts[0] == len(LENGTHS) * (max(LENGTHS) + max(PROMPTS))
    assert counts[1] <= (sum(LENGTHS) + sum(PROMPTS)) / LEAST + len(LENGTHS) * (max(PROMPTS) - min(PROMPTS))


def test_several_ranks_run_equally_many_passes(
    trainer: TrimmedGRPOTrainer, seen: list[torch.Size], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that shard the weights wait for each other in every pass."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    forward(trainer, True, rows=4)
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
