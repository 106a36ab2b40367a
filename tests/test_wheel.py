"""The wheel holds the library alone, and drafts in an environment that has vLLM and no checkout."""

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

SCRIPT = """
import sys
from importlib.util import find_spec

import das

assert find_spec("experiments") is None and find_spec("rewards") is None and find_spec("analysis") is None
das.install()

from vllm import LLM, SamplingParams

arguments = das.engine_arguments(budget={"name": "fixed", "tokens": 8})
llm = LLM(sys.argv[1], dtype="float32", max_model_len=256, **arguments)
params = [SamplingParams(seed=seed, max_tokens=64, extra_args={"das_problem": "p"}) for seed in range(4)]
drafted = 0
for step in range(2):
    llm.generate([{"prompt_token_ids": [5, 6, 7, 8]}] * 4, params, use_tqdm=False)
    report = llm.collective_rpc("das_end_rollout", args=(step + 1,))[0]
    drafted += report["drafted"]
print(das.__file__, drafted)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_wheel_holds_the_library_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"das"}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "das").rglob("*") if path.suffix in (".py", ".c", ".h")}
    assert sources <= set(names)


@pytest.mark.slow
def test_wheel_drafts_without_a_checkout(wheel: Path, repetitive_policy: str, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    site = next((environment / "lib").glob("python*/site-packages"))
    # vLLM and torch are those of this environment; its editable das is not seen, for .pth files are not followed.
    (site / "vllm.pth").write_text(sysconfig.get_path("purelib"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    done = subprocess.run(
        [str(python), "-I", "-c", SCRIPT, repetitive_policy], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    location, drafted = done.stdout.split()[-2:]
    assert Path(location).is_relative_to(site)
    assert int(drafted) > 0
