"""Convert token ids to arrays; write and read the .npz files in which a run keeps its state."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from das.general.files import replacing

MAX_TOKEN = 2**31 - 1


def token_array(tokens: Any) -> np.ndarray:
    """Convert token ids to int32 [length]; int32 arrays are not copied. Raises ValueError unless all are 0..2**31-1."""
    array = np.asarray(tokens)
    if array.ndim != 1:
        raise ValueError(f"token ids must be one-dimensional, got shape {array.shape}")
    if array.size == 0:
        return np.empty(0, np.int32)
    if array.dtype.kind not in "iu":
        raise ValueError(f"token ids must be integers, got {array.dtype}")
    if array.min() < 0 or array.max() > MAX_TOKEN:
        raise ValueError(f"token ids must be in 0..{MAX_TOKEN}")
    return np.ascontiguousarray(array, np.int32)


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as .npz to exactly `path`, whole (das/general/files.py)."""
    with replacing(Path(path)) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load_arrays(path: Path, kind: str) -> dict[str, np.ndarray]:
    """Read a file that `save_arrays` wrote. Returns its arrays by name. Raises ValueError for any other file, or if the
    file's entry "kind" is not `kind`."""
    with open(path, "rb") as stream:  # an OSError from here says what is wrong with the path
        try:
            refuse_packed(stream)
            with np.load(stream, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except Exception as error:  # NumPy and zipfile raise a dozen kinds for damaged files
            reason = " ".join(f"{error or type(error).__name__}".split())
            raise ValueError(f"{path}: not a readable .npz file ({reason:.200})") from None
    if "kind" not in arrays or str(arrays["kind"]) != kind:
        raise ValueError(f"{path}: does not hold a {kind}")
    return arrays


def packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Compress arrays into one message."""
    message = io.BytesIO()
    np.savez_compressed(message, **arrays)  # type: ignore[arg-type]
    return message.getvalue()


def unpacked(message: bytes) -> dict[str, np.ndarray]:
    """Undo `packed`."""
    with np.load(io.BytesIO(message), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def refuse_packed(stream: BinaryIO) -> None:
    """Raise ValueError if an .npz file unpacks into more bytes than it has: `save_arrays` packs nothing."""
    with zipfile.ZipFile(stream) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    size = stream.seek(0, os.SEEK_END)
    if unpacked > size:
        raise ValueError(f"it has {size} bytes and unpacks into {unpacked}")
    stream.seek(0)


def pack_strings(strings: list[Any]) -> np.ndarray:
    """Pack JSON values into one uint8 array. (NumPy's string arrays pad to the longest, and drop trailing NULs.)"""
    return np.frombuffer(json.dumps(strings).encode(), np.uint8)


def unpack_strings(array: np.ndarray) -> list[Any]:
    """Returns the JSON values that `pack_strings` packed into `array`."""
    return json.loads(array.tobytes())
