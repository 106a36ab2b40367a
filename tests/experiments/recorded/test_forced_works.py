from pathlib import Path

import numpy as np
import pytest
from steps_on_disk import json_lines

from experiments.recorded.forced_works import forced_works, with_end
from experiments.run.errors import UserError


def recording(path: Path, responses: int = 8) -> Path:
    rng = np.random.default_rng(0)
    rows = [
        {"problem_id": problem, "response_ids": rng.integers(0, 90_000, 40 + 10 * i).tolist()}
        for problem in ("a", "b")
        for i in range(responses)
    ]
    path.write_text(json_lines(rows))
    return path


def test_every_epoch_has_the_next_responses_cut_alike(tmp_path: Path) -> None:
    path = recording(tmp_path / "r.jsonl")
    (whole,) = forced_works(path, [4], siblings=2, epochs=4, tokens=10**9, prompt=5).values()
    (half,) = forced_works(
        path, [4], siblings=2, epochs=4, tokens=sum(len(w.tokens) for w in whole) // 4, prompt=5
    ).values()
    assert [work.problems for work in whole] == [("a", "a", "b", "b")] * 4
    assert [work.lengths.tolist() for work in whole][1] == [60, 70, 60, 70]
    for long, short in zip(whole, half, strict=True):
        assert np.allclose(short.lengths / long.lengths, 0.5, atol=0.02)
        assert all((short.response(i) == long.response(i)[: short.lengths[i]]).all() for i in range(4))


def test_the_end_is_a_token_of_its_own(tmp_path: Path) -> None:
    path = recording(tmp_path / "r.jsonl")
    works = forced_works(path, [2, 4], siblings=2, epochs=2, tokens=10**9, prompt=5)
    ended, end, vocabulary = with_end(works, None, path)
    same, large_end, large = with_end(works, 100_000, path)
    assert (large_end, large) == (99_999, 100_000)
    assert end < vocabulary <= end + 128
    for live, epochs in works.items():
        for work, renumbered, kept in zip(epochs, ended[live], same[live], strict=True):
            for i in range(len(work)):
                assert kept.response(i).tolist() == [*work.response(i).tolist(), large_end]
                response = renumbered.response(i)
                assert response[-1] == end
                assert end not in response[:-1]
                assert (np.argsort(response[:-1], kind="stable") == np.argsort(work.response(i), kind="stable")).all()


def test_what_cannot_be_forced_is_refused(tmp_path: Path) -> None:
    path = recording(tmp_path / "r.jsonl")
    with pytest.raises(UserError, match=r"0 problems have 32 responses, but task\.live=8 needs 1"):
        forced_works(path, [8], siblings=8, epochs=4, tokens=100, prompt=5)
    with pytest.raises(UserError, match=r"5 requests are no multiple of task\.siblings=2"):
        forced_works(path, [5], siblings=2, epochs=2, tokens=100, prompt=5)
    works = forced_works(path, [2], siblings=2, epochs=2, tokens=10**9, prompt=5)
    with pytest.raises(UserError, match="but the policy has 50000 tokens"):
        with_end(works, 50_000, path)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UserError, match="is empty"):
        forced_works(tmp_path / "empty.jsonl", [2], siblings=2, epochs=2, tokens=100, prompt=5)
