"""Is the pack for a lent GPU whole? Import it on torch 2.11's CUDA build, without a GPU (5 GB, some 4 minutes).

python launch/dry_run_gpu.py PACK [--python python3.12]

PACK: the folder that pack_gpu.py wrote. The environment is made once, in outputs/gpu_dry_run. A stub takes the place of
libcuda, and a made-up platform that of the GPU. What is checked: vLLM, TRL, das and the parts of task=check_gpu import;
vLLM's kernels register; the engine configs of stock, none and das are made for an 8B shape, with the flag of batch
invariance and without. Nothing runs on a device.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGE = Path(__file__).with_name("gpu_image.txt")  # what the lent machine has
MODULES = (
    "trl.generation.vllm_generation",
    "vllm.v1.engine.llm_engine",
    "vllm.model_executor.layers.quantization.online.base",
    "das.engine.worker",
    "das.engine.runner.runner",
    "das.verify.keyed_triton",
    "experiments.compare.comparison",
    *(f"experiments.gpu.{part}" for part in ("exact", "speed")),
)
KERNELS = {"_C": "rms_norm", "_C_cache_ops": "reshape_and_cache_flash", "_vllm_fa3_C": "fwd"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--python", default="python3.12")
    asked = parser.parse_args()
    home = ROOT / "outputs" / "gpu_dry_run"
    python = home / "venv" / "bin" / "python"
    if not (home / "made").exists():
        subprocess.run([asked.python, "-m", "venv", home / "venv"], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", IMAGE]
        subprocess.run(pip, check=True)
        (home / "made").touch()
    site = home / "site"
    if not (site / "vllm").exists():
        site.mkdir(exist_ok=True)
        parts = b"".join(part.read_bytes() for part in sorted(asked.pack.glob("gpu_site.tar.xz.*")))
        subprocess.run(["tar", "xJ", "-C", site], input=parts, check=True)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(stub(home, [site, home / "venv"])),
        "PYTHONPATH": f"{site}:{ROOT}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": str(home / "cache"),
    }
    failed = 0
    for invariant in ("0", "1"):  # a process for each, because vLLM reads the flag once
        code = "import sys; from launch.dry_run_gpu import check; check(sys.argv[1] == '1', sys.argv[2])"
        ran = subprocess.run([python, "-W", "ignore", "-c", code, invariant, str(home)], env=environment, cwd=ROOT)
        failed |= ran.returncode
    sys.exit(failed)


def stub(home: Path, folders: list[Path]) -> Path:
    """Compile a libcuda.so.1 whose functions all fail, so that CUDA libraries load. Returns its folder."""
    names: set[str] = set()
    for folder in folders:
        for library in folder.rglob("*.so"):
            listed = subprocess.run(
                ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=False
            )
            names |= {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines() if " cu" in line}
    functions = "".join(f"int {name}(void) {{ return 100; }}\n" for name in sorted(names) if name[2:3].isupper())
    out = home / "stub"
    out.mkdir(exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o", out / "libcuda.so.1"]
    subprocess.run(command, input=functions.encode(), check=True)
    return out


def check(invariant: bool, home: str) -> None:
    """Import everything, and make the engine configs. Raises what goes wrong. It runs in the environment made above."""
    import importlib

    import torch
    from triton.backends.nvidia.driver import CudaDriver

    CudaDriver.is_active = staticmethod(lambda: True)
    import vllm.platforms as platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    class Hopper(NonNvmlCudaPlatform):
        get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
        get_device_name = classmethod(lambda cls, device_id=0: "NVIDIA H100")
        get_device_total_memory = classmethod(lambda cls, device_id=0: 79 << 30)
        is_fully_connected = classmethod(lambda cls, ids: True)
        get_device_uuid = classmethod(lambda cls, device_id=0: "none")
        device_count = classmethod(lambda cls: 1)

    platforms._current_platform = Hopper()
    for name in MODULES:
        importlib.import_module(name)
    for name in ("_C_stable_libtorch", "vllm_flash_attn._vllm_fa3_C"):
        importlib.import_module(f"vllm.{name}")
    for library, function in KERNELS.items():
        assert hasattr(getattr(torch.ops, library), function), (library, function)
    from vllm.engine.arg_utils import EngineArgs

    import das
    from experiments.gpu.engines import ON_GPU
    from experiments.gpu.speed import NGRAM_GPU
    from experiments.policies.shapes import shape_of, weightless_policy

    policy = str(weightless_policy("8b", shape_of("8b").vocabulary or 0, "bfloat16", Path(home)))
    das.install(exact="bits" if invariant else "distribution")
    sizes = {"max_model_len": 1024, "max_num_seqs": 256}
    arms = {name: das.engine_arguments(name, exact="bits" if invariant else "distribution") for name in ("none", "das")}
    for name, arguments in {**arms, "ngram": {"speculative_config": NGRAM_GPU}}.items():
        engine = EngineArgs(model=policy, skip_tokenizer_init=True, **(sizes | arguments | ON_GPU))
        made = engine.create_engine_config()
        compilation = made.compilation_config
        print(
            f"torch {torch.__version__}, invariant {invariant}, {name}: mode {compilation.mode}, graphs "
            f"{compilation.cudagraph_mode}, largest {compilation.max_cudagraph_capture_size}, asynchronous "
            f"{made.scheduler_config.async_scheduling}, attention {made.attention_config.backend}"
        )


if __name__ == "__main__":
    main()
