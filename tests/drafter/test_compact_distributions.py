"""The compact form of remembered distributions: nothing is lost on the way through it, and damage is one line."""

import base64
import json
import zlib

import numpy as np
import pytest
from hypothesis import given, strategies
from reference_recall import pairs_beside

from das.drafter.distributions import NO_PAIR, PAIRS, Distributions, unknown

LISTS = strategies.lists(
    strategies.tuples(
        strategies.integers(0, 9),
        strategies.dictionaries(strategies.integers(0, 9), strategies.integers(0, 18), max_size=PAIRS),
    ),
    max_size=30,
)


def text_of(made: list[tuple[int, dict[int, int]]]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, and their distributions as uint32 [tokens, PAIRS]."""
    rows = unknown(len(made))
    for row, (_, levels) in zip(rows, made, strict=True):
        row[: len(levels)] = [token << 5 | level for token, level in levels.items()]
    return np.array([token for token, _ in made], np.int32), rows


@given(LISTS)
def test_rows_come_back_with_the_token_itself_first(made: list[tuple[int, dict[int, int]]]) -> None:
    """That is the order in which the index stores them."""
    tokens, rows = text_of(made)
    compact = Distributions.of(tokens, rows)
    for own, given_row, token in zip(compact.rows(tokens).tolist(), rows.tolist(), tokens.tolist(), strict=True):
        expected = [other << 5 | level for other, level in pairs_beside(token, given_row)]
        assert own == expected + [NO_PAIR] * (PAIRS - len(expected))
    again = Distributions.of(tokens, compact.rows(tokens))
    assert (again.heads.tolist(), again.others.tolist()) == (compact.heads.tolist(), compact.others.tolist())


@given(LISTS, strategies.integers(0, 40))
def test_texts_come_back_bit_for_bit(made: list[tuple[int, dict[int, int]]], count: int) -> None:
    """Through JSON, and cut or filled up to another number of tokens."""
    tokens, rows = text_of(made)
    compact = Distributions.of(tokens, rows)
    read = Distributions.from_text(json.loads(json.dumps(compact.text())), len(tokens))
    assert (read.heads.tobytes(), read.others.tobytes()) == (compact.heads.tobytes(), compact.others.tobytes())
    other = Distributions.from_text(compact.text(), count)
    common = min(count, len(tokens))
    found = other.rows(np.arange(count))[:common]
    found[:, 0] = compact.rows(tokens)[:common, 0]  # a token's own pair names the token of the text
    assert np.array_equal(found, compact.rows(tokens)[:common])
    assert (other.rows(np.arange(count))[common:] == NO_PAIR).all()


@given(LISTS, strategies.integers(0, 30))
def test_divided_distributions_are_those_of_the_parts(made: list[tuple[int, dict[int, int]]], at: int) -> None:
    tokens, rows = text_of(made)
    at = min(at, len(tokens))
    compact = Distributions.of(tokens, rows)
    for part, own in zip(compact.divided([at, len(tokens) - at]), (slice(at), slice(at, None)), strict=True):
        assert np.array_equal(part.rows(tokens[own]), compact.rows(tokens)[own])


def test_a_sure_token_takes_one_byte() -> None:
    tokens = np.arange(100, dtype=np.int32)
    rows = unknown(100)
    rows[:, 0] = tokens << 5
    assert Distributions.of(tokens, rows).nbytes == 100


TEXT = Distributions(np.full(3, 2 << 5, np.uint8), np.arange(6, dtype=np.uint32)).text()
CONTENT = zlib.decompress(base64.b64decode(TEXT))


def packed_again(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


DAMAGED = (
    *(b"", CONTENT[:2], CONTENT[:4], CONTENT[:-1], CONTENT[:-4], CONTENT + b"abcd"),
    *(b"\xff\xff\xff\xff" + CONTENT[4:], b"\x02" + CONTENT[1:]),
)


@pytest.mark.parametrize(
    "text",
    [None, 7, [], {}, "", "ä", "no base64!", TEXT[:-4], TEXT[4:], *map(packed_again, DAMAGED)],
)
def test_a_damaged_text_is_one_line(text: object) -> None:
    with pytest.raises(ValueError, match=r"^its distributions [^\n]+$"):
        Distributions.from_text(text, 3)


def test_a_text_that_unpacks_into_far_more_than_its_response_is_refused() -> None:
    text = Distributions.unknown(2**24).text()
    assert len(text) < 2**16
    with pytest.raises(ValueError, match="its distributions cannot be read"):
        Distributions.from_text(text, 3)
    assert len(Distributions.from_text(text, 2**24 - 9).heads) == 2**24 - 9
