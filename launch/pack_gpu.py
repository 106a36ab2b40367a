"""Pack what a bare machine with an H100 or H200, torch 2.11 (CUDA 13) and no network needs for task=check_gpu.

python launch/pack_gpu.py OUT [--cache FOLDER] [--policy FOLDER] [--python 3.12]

Into OUT go parts of at most 56 MiB of one archive, and SHA256SUMS. The archive is a folder for PYTHONPATH: vLLM 0.26.0
with the kernels for compute capability 9.0 alone, the packages of gpu_packages.txt and, below `policies`, a policy that
was made before (run.py finds it with cache=FOLDER). docs/install.md says how it is used.
"""

import argparse
import hashlib
import lzma
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

VLLM = "0.26.0"
PACKAGES = Path(__file__).with_name("gpu_packages.txt")
PART = 56 * 2**20  # bytes: a part and the checkout (5 MiB) travel together, at most 64 MiB
KERNELS = ("_C_stable_libtorch.abi3.so", "_vllm_fa3_C.abi3.so", "cumem_allocator.abi3.so", "spinloop.abi3.so")
LEFT_OUT = ("vllm/vllm-rs", "vllm/third_party/deep_gemm/", "vllm/third_party/fmha_sm100/")
GLIBC = ("manylinux1", "manylinux2014", *(f"manylinux_2_{minor}" for minor in (5, 12, 17, 24, 26, 27, 28, 31, 34, 35)))
MAGIC = 0xBA55ED50  # of a fat binary
CODE, PTX, HOPPER = 2, 1, 90


def fetch(cache: Path, python: str) -> list[Path]:
    """Download the wheels for a version of Python that the cache lacks. Returns their paths. Raises CalledProcessError
    if pip cannot."""
    wanted = [line for line in PACKAGES.read_text().splitlines() if line and not line.startswith("#")]
    platforms = [word for name in GLIBC for word in ("--platform", f"{name}_x86_64")]
    common = ["--python-version", python, "--implementation", "cp", *platforms, "--only-binary=:all:"]
    wheels = []
    for package in (*wanted, f"vllm=={VLLM}"):
        name, _, version = package.partition("==")
        pattern = f"{name.replace('-', '_').replace('.', '[._]')}-{version}-*.whl"
        if not list(cache.glob(pattern)):
            pip = [sys.executable, "-m", "pip", "--quiet"]
            done = subprocess.run([*pip, "download", "--no-deps", *common, "--dest", str(cache), package], check=False)
            if done.returncode:  # some old packages have sources only
                subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(cache), package], check=True)
        wheels += list(cache.glob(pattern))[:1]
    return wheels


def kept(name: str) -> bool:
    """Return whether a file of vLLM's wheel is packed: no kernels but KERNELS, no sources of kernels."""
    if name.startswith(LEFT_OUT) or name.endswith((".hpp", ".cuh")):
        return False
    return not name.endswith(".so") or Path(name).name in KERNELS


def sections(library: bytes) -> Iterator[tuple[int, int]]:
    """Yields begin and end of each section of a library (64-bit ELF) that holds device code."""
    offset = struct.unpack_from("<Q", library, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", library, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", library, offset + i * size) for i in range(count)]
    for head in heads:
        name = library[heads[names][4] + head[0] :][:16].split(b"\0")[0]
        if name == b".nv_fatbin":
            yield head[4], head[4] + head[5]


def stripped(library: bytes) -> bytes:
    """Return the library with the code of other devices than Hopper set to zero, so that it packs well. Fat binaries
    without code for Hopper keep their PTX, which the driver compiles."""
    found = bytearray(library)
    for begin, end in sections(library):
        at = begin
        while at < end - 16:
            magic, _, head, size = struct.unpack_from("<IHHQ", library, at)
            if magic != MAGIC:
                at += 8
                continue
            entries, entry, at = [], at + head, at + head + size
            while entry < at:
                kind, _, entry_head, length = struct.unpack_from("<HHIQ", library, entry)
                if kind not in (CODE, PTX):
                    break
                entries.append((kind, struct.unpack_from("<I", library, entry + 28)[0], entry + entry_head, length))
                entry += entry_head + length
            has_hopper = any((kind, device) == (CODE, HOPPER) for kind, device, _, _ in entries)
            for kind, device, first, length in entries:
                if (kind, device) != (CODE, HOPPER) and (has_hopper or kind == CODE or device > HOPPER):
                    found[first : first + length] = bytes(length)
    return bytes(found)


def unpack(wheels: list[Path], site: Path) -> None:
    """Unpack the wheels into the folder, vLLM's without what is not kept."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as packed:
            ours = not wheel.name.startswith("vllm-")
            packed.extractall(site, [name for name in packed.namelist() if ours or kept(name)])
    for library in (site / "vllm").rglob("*.so"):
        library.write_bytes(stripped(library.read_bytes()))


def split(archive: Path, out: Path) -> list[str]:
    """Split the archive into numbered parts of at most PART bytes. Returns their lines of SHA256SUMS."""
    data, lines = archive.read_bytes(), []
    for number, begin in enumerate(range(0, len(data), PART)):
        part = out / f"{archive.name}.{number:02d}"
        part.write_bytes(data[begin : begin + PART])
        lines.append(f"{hashlib.sha256(part.read_bytes()).hexdigest()}  {part.name}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("outputs/cache/wheels"))
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--python", default="3.12")
    asked = parser.parse_args()
    site, archive = asked.out / "site", asked.out / "gpu_site.tar.xz"
    for folder in (asked.cache, site):
        folder.mkdir(parents=True, exist_ok=True)
    unpack(fetch(asked.cache, asked.python), site)
    if asked.policy is not None:
        shutil.copytree(asked.policy, site / "policies" / asked.policy.name)
    with lzma.open(archive, "wb", preset=6) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for file in sorted(site.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                tar.add(file, file.relative_to(site))
    lines = split(archive, asked.out)
    (asked.out / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    size = archive.stat().st_size
    archive.unlink()
    unpacked = sum(file.stat().st_size for file in site.rglob("*") if file.is_file())
    shutil.rmtree(site)
    print(f"{unpacked / 2**20:.0f} MiB packed into {size / 2**20:.1f} MiB, {len(lines)} parts", *lines, sep="\n")


if __name__ == "__main__":
    main()
