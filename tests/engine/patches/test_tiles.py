"""Tiles of batch-invariant products for 7B and 8B shapes, compiled for sm_90: all use one family of instructions.

vLLM's kernel is compiled from the source of the installed vLLM. The same script shows why tiles below 64 rows are left
out: they compile to another family.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton.backends.nvidia", reason="Triton cannot compile for NVIDIA's GPUs here")
pytest.importorskip("vllm.model_executor.determinism.batch_invariant_configs", reason="this vLLM has no table of tiles")

SCRIPT = """
import ast, importlib.util, json, re, sys
from pathlib import Path
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from das.engine.patches.gpu import tune_matmuls
from das.engine.patches.gpu import LARGE
from vllm.model_executor.determinism import batch_invariant_configs as configs

source = Path(configs.__file__).with_name("batch_invariant.py").read_text()
kernels = Path(sys.argv[1]) / "kernels_of_vllm.py"
functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
kernels.write_text("import triton\\nimport triton.language as tl\\n" + "".join(
    "\\n@triton.jit\\n" + "\\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno]) + "\\n"
    for node in functions if node.name in ("_compute_pid", "matmul_kernel_persistent")
))
spec = importlib.util.spec_from_file_location("kernels_of_vllm", kernels)
module = importlib.util.module_from_spec(spec)
sys.modules["kernels_of_vllm"] = module
spec.loader.exec_module(module)
kernel = module.matmul_kernel_persistent


def families(rows, columns, inner, warps, stages, single):
    types = {name: "*bf16" if name.endswith("_ptr") else "i32" for name in kernel.arg_names}
    constants = dict(BLOCK_SIZE_M=rows, BLOCK_SIZE_N=columns, BLOCK_SIZE_K=inner, GROUP_SIZE_M=8, NUM_SMS=132)
    constants |= dict(A_LARGE=False, B_LARGE=False, C_LARGE=False, HAS_BIAS=False)
    constants |= dict.fromkeys(("stride_ak", "stride_bk", "stride_cn", *(["M"] if single else [])), 1)
    types |= dict.fromkeys(constants, "constexpr")
    wide = ("a_ptr", "b_ptr", "c_ptr", "N", "K", "stride_am", "stride_bn", "stride_cm")
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if name in wide}
    compiled = compile(
        ASTSource(kernel, types, constexprs=constants, attrs=attributes),
        target=GPUTarget("cuda", 90, 32), options=dict(num_warps=warps, num_stages=stages),
    )
    return sorted(set(re.findall(r"\\b(wgmma|mma)\\.[\\w.]*?\\.m\\d+n\\d+(k\\d+)", compiled.asm["ptx"])))


tune_matmuls()
table = configs._BATCH_INVARIANT_MATMUL_TUNED_CONFIGS["hopper"]
tiles = {(*tile, table[shape].block_k) for shape in LARGE for _, tile in table[shape].m_buckets}
found = [families(rows, columns, inner, warps, stages, False) for rows, columns, warps, stages, inner in sorted(tiles)]
rows, columns, warps, stages, inner = min(tiles)
found.append(families(rows, columns, inner, warps, stages, True))  # a pass of one row
print(json.dumps({"tiles": len(tiles), "large": found, "small": families(16, 64, 128, 4, 4, False)}))
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_tiles_for_large_models_use_one_family_of_instructions(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ran = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["tiles"] > 1
    assert all(families == [["wgmma", "k16"]] for families in found["large"])  # 16 inputs an instruction, in each tile
    assert found["small"] == [["mma", "k16"]], "smaller tiles are left out for no reason"
