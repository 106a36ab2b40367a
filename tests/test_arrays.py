"""Token ids as arrays, and .npz files that are written in one piece and checked when read."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from das.general.arrays import load_arrays, pack_strings, token_array, unpack_strings


@pytest.mark.parametrize("bad", [[-1], [2**31], [0.5], [[1]], ["a"]])
def test_bad_tokens(bad: list) -> None:
    with pytest.raises(ValueError, match="token ids"):
        token_array(bad)


@given(st.lists(st.text(max_size=5) | st.integers()))
def test_packed_strings_come_back(strings: list) -> None:
    assert unpack_strings(pack_strings(strings)) == strings


def test_load_refuses_other_files(tmp_path: Path) -> None:
    other = tmp_path / "other.npz"
    np.savez(other, kind=np.array("something"))
    with pytest.raises(ValueError, match="does not hold a state"):
        load_arrays(other, "state")
    other.write_bytes(b"not a zip")
    with pytest.raises(ValueError, match="not a readable"):
        load_arrays(other, "state")
