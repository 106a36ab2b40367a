"""Which recorded responses a comparison emits."""

from pathlib import Path

from composed import composed_run
from refusals import one_line
from steps_on_disk import json_lines

from experiments.arm.data import check_vocabulary, recorded_texts
from experiments.settings.config import RunConfig

END = 3
SIZES = ("data.problems=2", "trainer.per_device_train_batch_size=4", "trainer.num_generations=2", "trainer.max_steps=2")


def config(folder: Path, *overrides: str) -> RunConfig:
    """A comparison on a recording of three problems, of which the first has one response."""
    rows = [{"problem_id": "short", "response_ids": [1]}]
    rows += [
        {"problem_id": problem, "response_ids": [1000 * (1 + i), *range(first, first + 9)]}
        for problem, first in (("a", 0), ("b", 2))
        for i in range(5)
    ]
    (folder / "r.jsonl").write_text(json_lines(rows))
    return composed_run(f"task.recorded={folder / 'r.jsonl'}", *SIZES, *overrides)


def test_each_visit_has_the_next_responses_of_a_problem(tmp_path: Path) -> None:
    a, b = recorded_texts(config(tmp_path), END)
    assert [len(texts) for texts in (a, b)] == [4, 4], "two visits of two siblings"
    assert all(text[-1] == END and END not in text[:-1] and len(text) == 11 for text in (*a, *b))
    assert a[0][3:-1] == b[0][1:-3], "what was equal stays equal"
    assert len({text[0] for text in a}) == 4
    assert [text[0] for text in a] == [text[0] for text in b]
    (cut, _) = recorded_texts(config(tmp_path, "trainer.max_completion_length=6"), END)
    assert [len(text) for text in cut] == [6] * 4
    assert sorted({token for text in (*a, *b) for token in text}) == list(range(16)), "11 tokens, 4 first ones, the end"


def test_what_is_refused(tmp_path: Path) -> None:
    with one_line(r"r\.jsonl.*data\.problems"):
        recorded_texts(config(tmp_path, "data.problems=3", "trainer.max_steps=1"), END)
    with one_line(r"trainer\.max_steps"):
        recorded_texts(config(tmp_path, "trainer.max_steps=6"), END)
    (tmp_path / "config.json").write_text('{"vocab_size": 8}')
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((Path("experiments/policies/shipped/puzzles") / name).read_bytes())
    with one_line("policy=random"):
        check_vocabulary(config(tmp_path), str(tmp_path))
