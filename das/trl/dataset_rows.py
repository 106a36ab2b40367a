"""What the rows of a trainer's dataset mean to rollouts: their problem ids, whether their prompts fit into the engine,
and the history tick that the training has reached."""

import copy
import hashlib
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from das.general.errors import EngineError
from das.verify.admission import MAX_PROBLEM_ID, is_text

AT_ONCE = 256  # rows whose prompts are tokenized together
OF_TEMPLATE = 64  # tokens that a chat template may add to a message, beyond those that it adds to the first row


def history_tick(unit: str, rollouts: int, rows: int | None, problems: int) -> int:
    """Returns the history tick after `rollouts` rollouts of `problems` problems each. The drafter's window counts
    ticks.

    unit: "step" counts rollouts, "epoch" counts passes through the dataset's `rows`. If the dataset has no length
    (None), rollouts are counted.
    """
    if unit == "step" or rows is None:
        return rollouts
    return rollouts // max(1, rows // problems)  # TRL leaves out the rows that fill no batch


def problem_id(row: Mapping[str, Any], whole_row: bool = False) -> str:
    """Returns the row's `problem_id` or, without one, a digest of its prompt (text or conversation) and its images, or
    of the whole row. An id that is missing (None, NaN, an empty text) is none, and 3, 3.0 and "3" are one id.
    """
    if (given := _given(row.get("problem_id"))) is not None:
        return given
    images = [row[name] for name in ("image", "images") if name in row]  # TRL's columns
    asked = row if whole_row else [row["prompt"], images] if images else row["prompt"]
    return _digest(json.dumps(asked, sort_keys=True, default=_plain))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _given(value: Any) -> str | None:
    """Returns the id that the column `problem_id` holds, as text; None if it holds none."""
    if getattr(value, "shape", None) == ():
        value = value.item()  # of NumPy or torch
    if isinstance(value, float):
        if math.isnan(value):  # pandas writes it where a number is missing
            return None
        value = int(value) if value.is_integer() else value
    text = "" if value is None else str(value).strip()
    if text in ("", "<NA>", "NaT"):  # the last two: pandas' other missing values
        return None
    return text if is_text(text) and len(text) <= MAX_PROBLEM_ID else _digest(text)  # the engine takes no such id


def _plain(value: Any) -> str:
    """Returns a text that stands for a value that JSON lacks: an image's content, because its repr names its place in
    memory."""
    return hashlib.sha256(value.tobytes()).hexdigest() if hasattr(value, "tobytes") else repr(value)


# ---- what cannot work, said before the first step ----


def require_batch(args: Any, rows: int | None, responses: int) -> None:
    """Raise EngineError with a one-line message if the dataset does not fill one batch: TRL drops what fills none, and
    would train no step. Warn of a seed that das replaces.

    args: the trainer's. rows: of its dataset; None if unknown. responses: to each prompt.
    """
    if "seed" in (getattr(args, "generation_kwargs", None) or {}):
        warnings.warn(
            "generation_kwargs: its seed is not used, for each response has a seed of its own, made from args.seed",
            RuntimeWarning,
            stacklevel=2,
        )
    size = getattr(args, "generation_batch_size", None)
    if rows is not None and size and rows < size // responses:
        raise EngineError(
            f"train_dataset has {rows:,} rows, and a batch takes {size // responses:,} prompts "
            f"(generation_batch_size={size:,} / num_generations={responses:,}), so no step would be trained: give it "
            "more rows, or lower per_device_train_batch_size"
        )


def require_fitting(trainer: Any, room: int) -> None:
    """Raise EngineError with a one-line message if a prompt of the trainer's datasets is empty or does not fit into the
    engine, and warn if one leaves no room for a whole response.

    room: the most tokens of a prompt and its response together. Datasets without a length, with images, and with
    prompts that environments write are not checked: vLLM refuses such a prompt when it comes.
    """
    if getattr(trainer, "environment_factories", None):
        return
    evaluated = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {"": trainer.eval_dataset}
    named = {"train_dataset": trainer.train_dataset}
    named |= {f"eval_dataset{f'[{name!r}]' if name else ''}": dataset for name, dataset in evaluated.items()}
    response = getattr(trainer, "max_completion_length", None) or 0
    for name, dataset in named.items():
        columns = getattr(dataset, "column_names", None) or []
        if not hasattr(dataset, "__len__") or "prompt" not in columns or {"image", "images"} & set(columns):
            continue
        prompts = dataset.select_columns(["prompt"])
        lengths = dict(_odd_prompts(prompts, trainer._tokenize_prompts, room - response))
        if empty := [row for row, length in lengths.items() if not length]:
            raise EngineError(
                f"{name}: the prompt of row {empty[0]} is empty, and the engine needs a token to begin with"
                f"{f' ({len(empty)} rows are empty)' if len(empty) > 1 else ''}: leave them out"
            )
        if longer := [row for row, length in lengths.items() if length >= room]:
            raise EngineError(
                f"{name}: the prompt of row {longer[0]} has {lengths[longer[0]]:,} tokens, and the engine takes "
                f"{room - 1:,}{_more(longer)}: leave them out, or raise vllm_max_model_length"
            )
        if lengths:
            first = next(iter(lengths))
            warnings.warn(
                f"{name}: the prompt of row {first} has {lengths[first]:,} tokens, which leaves "
                f"{room - lengths[first]:,} for a response of max_completion_length={response:,}{_more(list(lengths))}",
                RuntimeWarning,
                stacklevel=2,
            )


def _odd_prompts(prompts: Any, tokenize: Any, at_most: int) -> Iterator[tuple[int, int]]:
    """Yields row and length of each prompt of more than `at_most` tokens, or of none.

    Only prompts that have as many bytes are tokenized: a token is a byte or more, beside those of the chat template.
    """
    added, chosen = 0, list[int]()
    for row, of_row in enumerate(prompts):
        prompt = of_row["prompt"]
        if not prompt and prompt != "":  # no text, or no message
            yield row, 0
            continue
        if not row:
            added = max(0, len(tokenize([copy.deepcopy(prompt)])[0][0]) - _bytes(prompt))
        extra = 0 if isinstance(prompt, str) else OF_TEMPLATE * len(prompt)
        if not prompt or _bytes(prompt) + added + extra > at_most:
            chosen.append(row)
    for first in range(0, len(chosen), AT_ONCE):
        rows = chosen[first : first + AT_ONCE]
        for row, ids in zip(rows, tokenize(list(prompts[rows]["prompt"]))[0], strict=True):
            if len(ids) > at_most or not ids:
                yield row, len(ids)


def _bytes(prompt: Any) -> int:
    return len((prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False, default=repr)).encode())


def _more(rows: Sequence[int]) -> str:
    return f" ({len(rows)} rows are so long)" if len(rows) > 1 else ""
