"""Resolve gpu.in into gpu.txt, or check gpu.txt: `make gpu-requirements`, `make check-gpu-requirements`.

Both read metadata from the public package index alone, without this machine's pip or uv settings, local wheels or
installed packages, and download no package but uv. The check resolves gpu.txt itself, for every Python that das
supports on Linux x86_64. It fails if a pin does not exist there, if two pins contradict each other, or if a package
needs one that is not pinned. It prints what has to be downloaded.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
UV = "uv==0.13.9"
PYTHONS = ("3.11", "3.12")
PLATFORM = "x86_64-manylinux_2_31"  # glibc 2.31 (Debian 11, Ubuntu 20.04): the wheel of llguidance needs it
# Sources that make no wheel: pure Python, built by pip in a second.
WITHOUT_WHEEL = {"antlr4-python3-runtime"}


def clean_environment() -> dict[str, str]:
    """This process's environment without settings of pip and uv. The index is then the public one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    return kept | {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}


def install_uv(folder: Path) -> Path:
    """Install uv into a new virtual environment; return its command."""
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", UV]
    subprocess.run(pip, env=clean_environment(), check=True)
    return folder / "bin" / "uv"


def resolve(uv: Path, source: Path, python: str, out: Path) -> None:
    """Resolve `source` for one Python into `out`. Pins that `out` already holds are kept where they can be."""
    command = [str(uv), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", python]
    command += ["--python-platform", PLATFORM, "--only-binary", ":all:"]
    command += [f"--no-binary={name}" for name in WITHOUT_WHEEL]
    if out.name.startswith("pylock."):
        command += ["--format", "pylock.toml"]
    result = subprocess.run([*command, str(source), "-o", str(out)], env=clean_environment(), check=False)
    if result.returncode:
        sys.exit(f"error: {source.name} does not resolve for Python {python}: see above")


def pins(file: Path) -> set[str]:
    """The lines `name==version` of a requirements file, with names as indexes compare them."""
    lines = [line.partition("==") for line in file.read_text().splitlines() if "==" in line and line[0] != "#"]
    return {f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}" for name, _, version in lines}


def download_bytes(lock: Path, python: str) -> int:
    """Bytes of all that pip would download, by a lock file. Of several wheels of a package the smallest counts."""
    own_tag = re.compile(rf"-(cp{python.replace('.', '')}-cp|cp\d+-abi3|py3|py2\.py3)")
    total = 0
    for package in tomllib.loads(lock.read_text())["packages"]:
        wheels = [wheel for wheel in package.get("wheels", []) if own_tag.search(wheel["url"])]
        fitting = [wheel["size"] for wheel in wheels if re.search(r"x86_64\.whl|-any\.whl", wheel["url"])]
        total += min(fitting) if fitting else package["sdist"]["size"]
    return total


def write(uv: Path) -> None:
    """Make gpu.txt anew. Packages that are in cpu.txt too get its versions where possible."""
    out = HERE / "gpu.txt.tmp"
    out.write_text((HERE / "cpu.txt").read_text())
    resolve(uv, HERE / "gpu.in", PYTHONS[0], out)
    out.write_text(
        "# All that gpu.in needs, made by `make gpu-requirements`: change gpu.in, not this file.\n" + out.read_text()
    )
    out.replace(HERE / "gpu.txt")


def check(uv: Path, scratch: Path) -> None:
    """Check gpu.txt for every Python; exit with one line for each difference."""
    wanted = pins(HERE / "gpu.txt")
    for python in PYTHONS:
        resolved, lock = scratch / f"{python}.txt", scratch / f"pylock.py{python.replace('.', '')}.toml"
        resolve(uv, HERE / "gpu.txt", python, resolved)
        resolve(uv, HERE / "gpu.txt", python, lock)
        if pins(resolved) != wanted:
            lines = [f"gpu.txt lacks {pin}" for pin in sorted(pins(resolved) - wanted)]
            lines += [
                f"gpu.txt has {pin}, which Python {python} does not take" for pin in sorted(wanted - pins(resolved))
            ]
            sys.exit("\n".join(lines))
        print(f"Python {python}: {len(wanted)} packages, {download_bytes(lock, python) / 1e9:.2f} GB to download")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="make gpu.txt anew from gpu.in before it is checked")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uv = install_uv(Path(folder) / "uv")
        if arguments.write:
            write(uv)
        check(uv, Path(folder))


if __name__ == "__main__":
    main()
