"""Drafts that reach the device after their pass was launched: the kernel that waits for them, in Triton's interpreter
and compiled for Hopper."""

from pathlib import Path

import pytest

from tests.verify.test_keyed_triton import run_python

INTERPRETED = """
import logging, threading, time
import numpy as np
import torch
from das.engine.runner import late_drafts
from das.engine.runner.late_drafts import LateDrafts

warned = []
logging.getLogger(late_drafts.__name__).warning = warned.append
draft_tokens = torch.full((6, 3), -1)
late = LateDrafts(draft_tokens)
drafts = np.array([[11, 12, 13], [21, 22, 23]])

def write_later():
    time.sleep(0.3)  # the device is at its first looks by then
    assert (draft_tokens == -1).all()
    late.write(drafts, number)

for number in range(1, 4):  # each wait takes its own draft, not the one before
    draft_tokens.fill_(-1)
    drafts += 100
    writer = threading.Thread(target=write_later)
    writer.start()
    late.expect(torch.tensor([4, 1]), number)
    writer.join()
    assert draft_tokens[[4, 1]].tolist() == drafts.tolist()
    assert (draft_tokens[[0, 2, 3, 5]] == -1).all()
assert not warned

late_drafts.PATIENCE = 5
late.expect(torch.tensor([4, 1]), 9)  # ends, though nobody writes
late.write(drafts, 9)
late.write(drafts * 0, 9)  # the drafter's thread was first
on_host, mark = late.memory
assert on_host[:2].tolist() == drafts.tolist() and on_host.flags.c_contiguous
assert mark == late._numbers.data_ptr()
assert len(warned) == 1
"""

COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from das.engine.runner.late_drafts import wait_for_drafts

pointers = dict.fromkeys(("numbers", "drafts", "indices", "out"), "*i64")
sizes = {"PATIENCE": 1000, "BLOCK": 2048}
types = {name: pointers.get(name, "constexpr" if name in sizes else "i32") for name in wait_for_drafts.arg_names}
compiled = compile(ASTSource(wait_for_drafts, types, constexprs=sizes), target=GPUTarget("cuda", 90, 32))
print(compiled.asm["ptx"])
"""


def test_the_device_waits_for_the_draft_that_is_written_next_and_gives_up_at_last(tmp_path: Path) -> None:
    ran = run_python(tmp_path, INTERPRETED, TRITON_INTERPRET="1")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_the_wait_compiled_for_sm_90_reads_the_hosts_memory_anew_each_time(tmp_path: Path) -> None:
    ran = run_python(tmp_path, COMPILED)
    assert ran.returncode == 0, ran.stderr
    loop = ran.stdout[ran.stdout.index("ld.volatile") :]
    assert loop.count("ld.volatile") >= 2, "the first look, and those of the loop"
