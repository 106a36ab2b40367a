"""What waits for a draft head, and what the head looks at, against a slow reference: no engine, made-up requests.

Requests come with shared prompts, get ids of others, are preempted, finish, and draft. The head is asked at random.
"""

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from das.engine.runner import head_passes
from das.engine.runner.head_passes import HeadPasses, PolicyPass

SIZE = 4  # tokens of a block
BLOCKS = 90
KEPT = 11
MOST_DRAFTED = 3
LAYERS = 3


@dataclass(eq=False)
class Request:
    """A made-up request. Its text is what it emits: a number for each position, shared by equal prompts."""

    prompt: list[int]
    emitted: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    computed: int = 0  # tokens in the KV cache
    waits_from: int = 0  # the first position whose hidden state must wait for the head
    sees_from: int | None = 0  # the first position that the head can look at; None: some waited too long

    @property
    def text(self) -> list[int]:
        return self.prompt + self.emitted


class World:
    """A model runner, its batch, scheduler and KV cache, as far as HeadPasses sees them."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.dies = 0.2 if seed % 2 else 0.03  # the probability of a request to end, in each pass
        self.num_came = 0
        self.live: dict[str, Request] = {}  # in the batch, by id
        self.waiting: dict[str, Request] = {}  # preempted
        self.users = [0] * BLOCKS  # requests that hold the block
        self.holds: list[tuple[int, ...] | None] = [None] * BLOCKS  # text up to the end of the block, if all is known
        self.head = [[-1] * SIZE for _ in range(BLOCKS)]  # what the head's rows were computed from
        self.next_token = 1000
        tables = np.zeros((16, 40), np.int32)
        self.tables, self.texts = tables, np.zeros((0, 0), np.int32)
        self.batch = SimpleNamespace()
        vllm = SimpleNamespace(
            kv_cache_config=SimpleNamespace(
                num_blocks=BLOCKS, kv_cache_groups=[SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=SIZE))]
            ),
            _kernel_block_sizes=[SIZE],
            vllm_config=SimpleNamespace(speculative_config=SimpleNamespace(num_speculative_tokens=MOST_DRAFTED)),
        )
        self.runner: Any = SimpleNamespace(
            vllm=vllm,
            input_batch=self.batch,
            requests={},
            block_tables=lambda kv_group: self.tables,
            texts=lambda: self.texts,
        )
        self.passes = HeadPasses(self.runner, SimpleNamespace(combine_hidden_states=lambda hidden: hidden), None, 0)
        self.passes._run = self.run  # type: ignore[method-assign]
        self.num_gaps = self.num_hits = self.num_read = 0
        self.rests = False
        self.num_unable = 0

    def new_tokens(self, num: int) -> list[int]:
        self.next_token += num
        return list(range(self.next_token - num, self.next_token))

    # ---- the scheduler ----

    def admit(self, name: str, request: Request) -> None:
        """The request joins the batch, on blocks of the prefix cache as far as these hold its text."""
        hits: list[int] = []
        while (len(hits) + 1) * SIZE < len(request.text):
            prefix = tuple(request.text[: (len(hits) + 1) * SIZE])
            if prefix not in self.holds:
                break
            hits.append(self.holds.index(prefix))
        for block in hits:
            self.users[block] += 1
        request.blocks, request.computed = hits, len(hits) * SIZE
        request.waits_from = request.sees_from = request.computed
        while request.sees_from and self.seen(request, request.sees_from - SIZE, request.sees_from):
            request.sees_from -= SIZE
        self.num_hits += len(hits)
        self.live[name] = request

    def leave(self, name: str) -> Request:
        request = self.live.pop(name)
        for block in request.blocks:
            self.users[block] -= 1
        request.blocks = []
        return request

    def grow(self, request: Request, num: int) -> list[int]:
        """Blocks for so many tokens. What others left in them is not this request's."""
        new = []
        while len(request.blocks) * SIZE < num:
            free = [block for block in range(BLOCKS) if not self.users[block]]
            new.append(self.random.choice(free))
            self.users[new[-1]], self.holds[new[-1]] = 1, None
            self.head[new[-1]] = [-1] * SIZE
            request.blocks.append(new[-1])
        return new

    def step(self) -> None:
        """A pass of the policy, of which the head's part is noted, and perhaps a round in which the head is asked."""
        rng, ended, came, resumed = self.random, [], [], []
        for name in list(self.live):
            what = rng.random()
            if what < self.dies or len(self.live[name].text) > 50:
                self.leave(name)
                ended.append(name)
            elif what < self.dies + 0.02:  # preempted
                self.waiting[name] = self.leave(name)
            elif what < self.dies + 0.04:  # the next turn of a session: its last token, not computed yet, is dropped
                request = self.live[name]
                request.prompt = request.text[: request.computed] + self.new_tokens(rng.randrange(1, 9))
                request.emitted = []
                came.append(name)
        self.num_came += 1
        for name in [*ended, *self.waiting, f"new-{self.num_came}"]:
            if name not in self.live and len(self.live) < 5 and rng.random() < 0.5:
                old = self.waiting.pop(name, None)
                (came if old is None else resumed).append(name)
                self.admit(name, old or Request([100 * rng.randrange(3) + i for i in range(rng.randrange(1, 15))]))
        if not self.live:
            return
        names = rng.sample(list(self.live), len(self.live))
        scheduled, hidden, changed = [], [], {}
        for name in names:
            request = self.live[name]
            left = len(request.text) - request.computed
            count = rng.choice((left, min(left, SIZE))) if left > 1 else 1 + rng.randrange(MOST_DRAFTED + 1)
            first_of_new = len(request.blocks)
            self.grow(request, request.computed + count + MOST_DRAFTED)
            changed[name] = request.blocks[first_of_new:]
            emitted = max(0, 1 + request.computed + count - len(request.text))
            emitted = rng.randrange(1, emitted + 1) if left == 1 else emitted
            request.emitted += self.new_tokens(emitted)
            # A hidden state tells which text it stands for; those behind rejected drafts are wrong.
            right = request.text[request.computed : request.computed + count]
            right = right[: len(request.text) - 1 - request.computed]
            hidden += right + [-7] * (count - len(right))
            scheduled.append((name, count, request.computed))
        self.set_batch(names)
        layers = [torch.tensor(hidden)[:, None] + 10**6 * layer for layer in range(LAYERS)]
        if self.rests:
            self.passes.skip()
            self.head = [[-1] * SIZE for _ in range(BLOCKS)]
        else:
            counts, starts = ([row[at] for row in scheduled] for at in (1, 2))
            policy_pass = PolicyPass(np.cumsum([0, *counts]), np.array(starts), layers)
            self.passes.keep(self.scheduler_output(came, resumed, changed), resumed, policy_pass)
        # A rollout may end while requests go on; of requests that never draft nobody tells that they end.
        for name in rng.sample([*ended, *names], rng.randrange(len(names))):
            self.passes.forget(name)
        assert self.rests or len(self.passes._unread) <= 2 * (len(self.live) + len(self.waiting))
        for unread in self.passes._unread.values():
            assert sum(end - begin for _, begin, end in list(unread.parts)[1:]) < KEPT
            for held, begin, end in unread.parts:
                assert len(held.rows(0, 999)) <= max(5 * (1 + MOST_DRAFTED), end - begin)
        for name, count, computed in scheduled:
            request = self.live[name]
            request.computed = min(computed + count, len(request.text) - 1)
            if self.rests:
                request.waits_from, request.sees_from = request.computed, None
            else:
                self.must_wait(request)
        if rng.random() < 0.25 and not self.rests:
            self.ask(names)
        for request in self.live.values():
            for i in range(request.computed // SIZE):
                self.holds[request.blocks[i]] = tuple(request.text[: (i + 1) * SIZE])

    def must_wait(self, request: Request) -> None:
        """Of a text that waits for long, at least the last KEPT tokens do."""
        if request.computed - request.waits_from > KEPT:
            request.waits_from, request.sees_from = request.computed - KEPT, None

    def set_batch(self, names: list[str]) -> None:
        batch, requests = self.batch, [self.live[name] for name in names]
        batch.req_ids, batch.num_reqs = names, len(names)
        self.runner.requests = {**self.live, **self.waiting}
        batch.num_tokens_no_spec = np.array([len(request.text) for request in requests], np.int32)
        batch.num_prompt_tokens = np.array([len(request.prompt) for request in requests], np.int32)
        self.texts = np.full((len(names), 120), -9, np.int32)
        for row, request in enumerate(requests):
            self.texts[row, : len(request.text)] = request.text
            self.tables[row, : len(request.blocks)] = request.blocks

    def scheduler_output(self, came: list[str], resumed: list[str], changed: dict[str, list[int]]) -> Any:
        others = [name for name in self.live if name not in came]
        hits = {name: (self.live[name].computed // SIZE) * SIZE for name in self.live}
        return SimpleNamespace(
            scheduled_new_reqs=[
                SimpleNamespace(block_ids=(self.live[name].blocks,), num_computed_tokens=hits[name]) for name in came
            ],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=others,
                num_computed_tokens=[hits[name] for name in others],
                new_block_ids=[
                    (self.live[name].blocks,) if name in resumed else (changed[name],) if changed[name] else None
                    for name in others
                ],
            ),
        )

    # ---- the head ----

    def seen(self, request: Request, begin: int, end: int) -> bool:
        """Whether the head has read these tokens of the request's text, in its blocks."""
        seen = [self.head[request.blocks[at // SIZE]][at % SIZE] for at in range(begin, end)]
        return seen == request.text[begin:end]

    def ask(self, names: list[str]) -> None:
        done = [row for row, name in enumerate(names) if self.live[name].computed == len(self.live[name].text) - 1]
        able = self.passes.able(names)
        if able is not None:
            self.num_unable += int((~able[done]).sum())
            done = [row for row in done if able[row]]
        if not done:
            return
        rows = np.array(sorted(self.random.sample(done, self.random.randrange(1, len(done) + 1))))
        among = np.array(sorted(self.random.sample(range(len(rows)), self.random.randrange(1, len(rows) + 1))))
        self.num_read, self.drafting = 0, rows[among].tolist()
        expected = self.passes.num_unread(rows, among)
        last = self.passes.read(rows, among)
        assert self.num_read == expected
        assert last[:, 0].tolist() == [self.live[names[row]].text[-2] for row in rows[among]]
        among = among[: self.random.randrange(len(among) + 1)]
        if len(among):
            self.passes.go_on(among, np.full(len(among), -3))

    def run(
        self,
        rows: np.ndarray,
        firsts: np.ndarray,
        starts: np.ndarray,
        counts: np.ndarray,
        tokens: np.ndarray,
        hidden: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """HeadPasses._run: what the head computes is the text that it was given."""
        end, drafts = 0, bool((tokens == -3).all())
        for row, first, start, count in zip(rows, firsts, starts, counts, strict=True):
            request = self.live[self.batch.req_ids[row]]
            begin, end = end, end + count
            blocks = request.blocks
            if not drafts:
                assert start + count == request.computed
                assert tokens[begin:end].tolist() == request.text[start + 1 : start + count + 1]
                own = torch.tensor(request.text[start : start + count])[:, None]
                assert torch.equal(hidden[begin:end], torch.cat([own + 10**6 * i for i in range(LAYERS)], 1))
                # All that must have waited is read, but for what is before the begin of a block.
                assert (
                    first == request.sees_from if request.sees_from is not None else first < request.waits_from + SIZE
                )
                assert first == 0 or row in self.drafting
                assert start <= max(first, request.waits_from)
                self.num_gaps += bool(first > 0)
                request.waits_from = request.computed
            assert self.seen(request, first, start)
            for i in range(count):
                at = start + i
                self.head[blocks[at // SIZE]][at % SIZE] = -5 if drafts else request.text[at]
        self.num_read += end
        return hidden, hidden


@pytest.mark.parametrize("seed", range(30))
def test_a_head_reads_all_that_waited_and_looks_at_nothing_else(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_passes, "KEPT", KEPT)
    world = World(seed)
    for _ in range(300):
        world.step()
    assert world.num_hits > 20
    assert world.num_gaps > 5


@pytest.mark.parametrize("seed", range(10))
def test_a_head_that_rested_looks_at_nothing_from_before(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it rests, blocks of the KV cache change hands, prompts join the prefix cache, and requests go on."""
    monkeypatch.setattr(head_passes, "KEPT", KEPT)
    world = World(seed)
    for step in range(1000):
        if step % 10 == 0:
            world.rests = not world.rests
        world.step()
    assert world.num_hits > 20
    assert world.num_gaps > 5
    assert world.num_unable > 5


def test_what_waits_goes_on_without_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """If vLLM keeps the states of some tokens for itself, those before them are forgotten."""
    monkeypatch.setattr(head_passes, "KEPT", KEPT)
    world = World(0)
    keep = world.passes.keep
    for step in range(200):
        with monkeypatch.context() as patched:
            if step % 5 == 4:
                patched.setattr(world.passes, "keep", lambda *args: None)
                patched.setattr(world, "ask", lambda names: None)
            else:
                patched.setattr(world.passes, "keep", keep)
                patched.setattr(world, "ask", lambda names: all_wait(world))
            world.step()


def all_wait(world: World) -> None:
    for unread in world.passes._unread.values():
        assert unread.stop - unread.start == sum(end - begin for _, begin, end in unread.parts)
        if unread.owner in world.live.values():
            assert unread.stop == unread.owner.computed
            states = torch.cat([held.rows(begin, end)[:, 0] for held, begin, end in unread.parts])
            assert states.tolist() == unread.owner.text[unread.start : unread.stop]
