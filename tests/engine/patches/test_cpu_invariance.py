"""A token's bits on the CPU do not depend on what else is in the pass, also in long contexts and in wide layers.

Seen to fail with each of these changes, with the failing tests in brackets: QUERIES = 9 (attention, engine);
`split_queries` returns its argument (engine); every piece gets the `seq_lens` of its whole request (attention);
INPUTS = 4096 (linear, engine); `activate_in_groups` activates all at once (engine, with three threads).
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Engines, in_a_fork, random_policy, roll
from vllm import SamplingParams
from vllm import _custom_ops as ops
from vllm.platforms import current_platform
from vllm.v1.attention.backend import CommonAttentionMetadata

from das.engine.patches.cpu import INPUTS, double_single_rows, split_queries

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="this build of vLLM has no CPU kernels")
CONTEXT, BLOCK = 1200, 128


class Attention:
    """The queries of one sequence, and its keys and values in a paged cache."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int):
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        current_platform.import_kernels()
        self.shape = heads, kv_heads, head_dim
        self.isa = _get_attn_isa(torch.float32, BLOCK, head_dim, "auto")
        generator = torch.Generator().manual_seed(0)
        self.queries = torch.randn(CONTEXT, heads, head_dim, generator=generator)
        keys, values = torch.randn(2, CONTEXT, kv_heads, head_dim, generator=generator)
        blocks = -(-CONTEXT // BLOCK)
        self.keys, self.values = torch.zeros(blocks, kv_heads, 2 * BLOCK, head_dim).chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(keys, values, self.keys, self.values, torch.arange(CONTEXT), self.isa)
        self.table = torch.arange(blocks, dtype=torch.int32)[None, :]

    def run(self, spans: list[tuple[int, int]], split: bool) -> torch.Tensor:
        """Attention of the queries start..stop of each span, in one pass: each span is a request of this sequence."""
        lengths = torch.tensor([stop - start for start, stop in spans])
        starts = torch.cat((torch.zeros(1), lengths.cumsum(0))).to(torch.int32)
        metadata: Any = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=torch.tensor([stop for _, stop in spans], dtype=torch.int32),
            num_reqs=len(spans),
            num_actual_tokens=int(lengths.sum()),
            max_query_len=int(lengths.max()),
            max_seq_len=CONTEXT,
            block_table_tensor=self.table.repeat(len(spans), 1),
            slot_mapping=torch.empty(0),
        )
        if split:
            metadata = split_queries(metadata)
        heads, kv_heads, head_dim = self.shape
        queries = torch.cat([self.queries[start:stop] for start, stop in spans])
        out = torch.empty_like(queries)
        plan = ops.cpu_attn_get_scheduler_metadata(
            metadata.num_reqs, heads, kv_heads, head_dim, metadata.seq_lens, torch.float32, metadata.query_start_loc,
            True, -1, self.isa, False,
        )  # fmt: skip
        ops.cpu_attention_with_kv_cache(
            queries, self.keys, self.values, out, metadata.query_start_loc, metadata.seq_lens, head_dim**-0.5, True,
            None, -1, metadata.block_table_tensor, 0.0, plan, None,
        )  # fmt: skip
        return out


def test_attention_in_pieces_has_the_bits_of_single_queries() -> None:
    attention = Attention(heads=2, kv_heads=1, head_dim=128)
    alone = torch.cat([attention.run([(i, i + 1)], split=False) for i in range(CONTEXT)])
    assert torch.equal(attention.run([(0, CONTEXT)], split=True), alone)  # one whole prompt
    rng = np.random.default_rng(0)
    for _ in range(15):  # drafts of all lengths and part of a prompt, in one pass
        lengths = rng.choice([1, 2, 5, 8, 9, 17, 33, 65, 300], size=rng.integers(1, 30))
        spans = [(int(start), int(start + n)) for n, start in zip(lengths, rng.integers(0, 900, 30), strict=False)]
        expected = torch.cat([alone[start:stop] for start, stop in spans])
        assert torch.equal(attention.run(spans, split=True), expected)


@pytest.mark.parametrize("inputs", [INPUTS, INPUTS + 32, 4096])
def test_a_row_of_a_linear_layer_does_not_depend_on_the_others(inputs: int) -> None:
    current_platform.import_kernels()
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(256, inputs, generator=generator)
    x = torch.randn(300, inputs, generator=generator)
    handler = ops.create_onednn_mm(weight.t(), 32)

    def plain(rows: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
        return ops.onednn_mm(handler, rows, bias)

    linear = double_single_rows(plain) if inputs > INPUTS else plain
    alone = torch.cat([linear(x[i : i + 1], weight, None) for i in range(len(x))])
    for rows in (1, 2, 3, 7, 16, 17, 33, 64, 65, 100, 200, 300):
        assert torch.equal(linear(x[:rows].contiguous(), weight, None), alone[:rows])


def long_contexts_and_wide_layers(policy: str, threads: int) -> tuple[Any, Any]:
    """The answers, and the number of passes, without and with drafts of 16 tokens. Prompts have 600 tokens, and are
    chunked and prefix-cached."""
    torch.set_num_threads(threads)
    rng = np.random.default_rng(1)
    longest = rng.integers(6, 250, size=600).tolist()
    prompts = [longest, [*longest[:500], 9], longest[:555], rng.integers(6, 250, size=300).tolist()] * 2
    engines = Engines()

    def twice(**settings: Any) -> Any:
        llm = engines.build(policy, max_model_len=1024, **settings)
        rolls = []
        for history_tick in (1, 2):
            params = [SamplingParams(seed=i, max_tokens=80, ignore_eos=True, logprobs=1) for i in range(len(prompts))]
            rolls.append(roll(llm, prompts, params, [str(i % 4) for i in range(len(prompts))], history_tick))
        return [(tokens, logprobs) for tokens, logprobs, _ in rolls], rolls[1][2]["passes"]

    undrafted = twice(enable_prefix_caching=False)
    # Seeds come again, so past tokens do. The distributions of a random policy are too flat to say which.
    drafted = twice(
        method="das", max_num_seqs=5, max_num_batched_tokens=320, budget={"name": "fixed", "tokens": 16},
        drafter={"remember": "tokens"},
    )  # fmt: skip
    engines.close()
    return undrafted, drafted


def test_long_contexts_and_wide_layers_in_the_engine(tmp_path: Path) -> None:
    """Drafts change no bit of tokens or log-probs. Three threads divide a row of 1,280 values."""
    policy = random_policy(
        tmp_path, head_dim=128, num_attention_heads=4, intermediate_size=1280, max_position_embeddings=1024
    )
    (answers, passes), (drafted_answers, drafted_passes) = in_a_fork(long_contexts_and_wide_layers, policy, 3)
    assert drafted_passes < passes / 3, "too few drafts were accepted: the test would prove nothing"
    assert drafted_answers == answers
