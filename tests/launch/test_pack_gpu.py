"""The pack for a GPU machine: code for other devices goes, Hopper's stays, and the parts join to the same archive."""

import hashlib
import importlib.util
import struct
from pathlib import Path
from typing import Any

import pytest

from experiments.run.errors import CONFIGS


@pytest.fixture(scope="module")
def pack() -> Any:
    spec = importlib.util.spec_from_file_location("pack_gpu", CONFIGS.parent / "launch" / "pack_gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fat_binary(pack: Any, entries: list[tuple[int, int]]) -> bytes:
    """A fat binary with an entry of 64 bytes for each kind and device, filled with the device's number."""
    body = b""
    for kind, device in entries:
        head = struct.pack("<HHIQ", kind, 1, 64, 64).ljust(28, b"\0") + struct.pack("<I", device)
        body += head.ljust(64, b"\0") + bytes([device]) * 64
    return struct.pack("<IHHQ", pack.MAGIC, 1, 16, len(body)) + body


def library(code: bytes) -> bytes:
    """A library with this code in its section for devices, and nothing else."""
    names = b"\0.nv_fatbin\0.shstrtab\0"
    at = 64 + len(code)
    heads = [(1, 64, len(code)), (12, at, len(names))]
    table = b"".join(struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, begin, size, 0, 0, 1, 0) for name, begin, size in heads)
    start = bytearray(64)
    struct.pack_into("<Q", start, 0x28, at + len(names))
    struct.pack_into("<HHH", start, 0x3A, 64, 2, 1)
    return bytes(start) + code + names + table


def test_only_code_for_hopper_stays(pack: Any) -> None:
    code, ptx = pack.CODE, pack.PTX
    with_hopper = fat_binary(pack, [(code, 80), (code, 90), (ptx, 90), (code, 120)])
    without = fat_binary(pack, [(code, 80), (ptx, 75), (ptx, 100)])
    before = library(with_hopper + without + bytes(16))
    after = pack.stripped(before)
    assert len(after) == len(before)
    left = [device for device in (75, 80, 90, 100, 120) if bytes([device]) * 64 in after]
    assert left == [75, 90]
    assert after.count(bytes([90]) * 64) == 1  # the code, without the PTX of the same kernel
    assert pack.stripped(library(bytes(64))) == library(bytes(64))


def test_other_kernels_and_their_sources_are_left_out(pack: Any) -> None:
    names = ("vllm/_moe_C_stable_libtorch.abi3.so", "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", "vllm/vllm-rs")
    assert [pack.kept(name) for name in (*names, "vllm/config/vllm.py")] == [False, True, False, True]


def test_parts_join_to_the_archive(pack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "PART", 1000)
    archive = tmp_path / "site.tar.xz"
    archive.write_bytes(bytes(range(250)) * 10)
    parts = sorted(lines.split("  ")[1] for lines in pack.split(archive, tmp_path))
    assert len(parts) == 3
    assert b"".join((tmp_path / part).read_bytes() for part in parts) == archive.read_bytes()


def test_digests_are_of_the_parts(pack: Any, tmp_path: Path) -> None:
    archive = tmp_path / "site.tar.xz"
    archive.write_bytes(b"some")
    assert pack.split(archive, tmp_path) == [f"{hashlib.sha256(b'some').hexdigest()}  site.tar.xz.00"]
