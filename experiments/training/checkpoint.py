"""Checkpoints on disk, from which a killed training continues bit for bit: each is complete or does not exist.

A folder `step_00012` holds the checkpoint after step 12. First its files are written into a folder of another name,
then a manifest with their SHA-256, and last the folder is renamed. So a half-written checkpoint never has that name,
and a checkpoint that was damaged or swapped later does not match its manifest.

transformers saves and loads the policy, the optimizer, the scheduler, random states and its own counters (torch files,
read with weights_only). This project adds three things: the order of the data, which TRL draws from a generator that no
checkpoint holds (das/trl/resume.py); the drafter's history and everything else that the rollout side has learned; and
atomic writing. Each rank writes its own random state and its own rollout side. The main rank writes what all ranks
share.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from das.general import ranks
from das.general.errors import reason_of
from das.general.files import flush, write_text
from experiments.run.errors import CheckpointError

KIND = "das checkpoint"
MANIFEST = "manifest.json"
OPTIMIZER = "optimizer.pt"  # two thirds of a checkpoint, needed only to train on
_NAME = re.compile(r"step_(\d{5,})")
# A folder gets this prefix before it is deleted, because a half-deleted one must not look like a damaged checkpoint.
_DELETED = ".deleted-"


def step_folder(folder: Path, step: int) -> Path:
    """Return the folder that holds the checkpoint of `step`. folder: that of all checkpoints of a run."""
    return folder / f"step_{step:05d}"


def seal(scratch: Path, folder: Path, step: int, run_identity: Mapping[str, Any]) -> None:
    """Make the files in `scratch` the checkpoint of `step` in `folder`.

    run_identity: the settings that identify the run, as JSON values. Both folders must be on one file system. Raises
    OSError, also for a full disk.
    """
    files = {
        str(path.relative_to(scratch)): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(scratch.rglob("*"))
        if path.is_file()
    }
    manifest = {"kind": KIND, "step": step, "about": dict(run_identity), "files": files}
    text = json.dumps({"sha256": _digest(manifest), "manifest": manifest}, indent=1)
    write_text(scratch / MANIFEST, text)
    for path in (*scratch.rglob("*"), scratch):
        flush(path)
    folder.mkdir(parents=True, exist_ok=True)
    final = step_folder(folder, step)
    if final.exists():  # left by a run that resumed from an earlier step
        discard(final)
    os.rename(scratch, final)
    flush(folder)


def verify(folder: Path, step: int, ended: bool = False) -> None:
    """Raise CheckpointError unless the checkpoint of `step` is complete and unaltered, and nothing was added to it.

    ended: the run ends with this step, so the optimizer's state may be gone (`keep_policy`).
    """
    path = step_folder(folder, step)
    files = read_manifest(folder, step)["files"]
    if ended and not (path / OPTIMIZER).exists():
        files.pop(OPTIMIZER, None)
    present = {str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir()}
    for name in sorted(present ^ {*files, MANIFEST}):
        raise CheckpointError(f"{path / name} is {'not part of the checkpoint' if name in present else 'missing'}")
    for name, expected in files.items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"{file} is not a plain file")
        if file.stat().st_size != expected["bytes"]:
            raise CheckpointError(f"{file} has {file.stat().st_size} of {expected['bytes']} bytes")
        if sha256(file) != expected["sha256"]:
            raise CheckpointError(f"{file} is not what was written (SHA-256)")


def read_manifest(folder: Path, step: int) -> dict[str, Any]:
    """Read what the checkpoint of `step` says of itself: `about`, the identity of the run that wrote it, and `files`,
    with their SHA-256. Raises CheckpointError if it is damaged."""
    path = step_folder(folder, step) / MANIFEST
    try:
        content = json.loads(path.read_bytes())
        manifest: dict[str, Any] = content["manifest"]
        if content["sha256"] != _digest(manifest) or (manifest["kind"], manifest["step"]) != (KIND, step):
            raise ValueError("altered")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is missing or damaged ({error})") from None
    return manifest


def steps(folder: Path) -> list[int]:
    """List the steps that have a checkpoint, valid or damaged, newest first."""
    if not folder.is_dir():
        return []
    return sorted((int(match[1]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))), reverse=True)


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints, and the remains of checkpoints whose deletion was interrupted."""
    for step in steps(folder)[keep:]:
        discard(step_folder(folder, step))
    for remains in folder.glob(f"{_DELETED}*"):
        shutil.rmtree(remains)


def keep_policy(folder: Path) -> None:
    """Of the checkpoints of a finished run, keep the last one without the optimizer's state: nothing trains on from
    it, but the policy can be evaluated."""
    prune(folder, 1)
    for step in steps(folder):
        (step_folder(folder, step) / OPTIMIZER).unlink(missing_ok=True)


def discard(path: Path) -> None:
    """Delete a checkpoint."""
    deleted = path.with_name(_DELETED + path.name)
    if deleted.exists():
        shutil.rmtree(deleted)
    os.rename(path, deleted)
    shutil.rmtree(deleted)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(manifest: Any) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


# ---- writing ----

FINAL = "final.json"  # digests of the final state, so that no engine is needed to resume a finished run


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run: their folder, how many to keep, and the identity of the run, which each one records."""

    folder: Path
    keep: int
    run_identity: Mapping[str, Any]

    def save(
        self, scratch: Path, step: int, write: Callable[[], None], digests: Callable[[], Mapping[str, str]]
    ) -> None:
        """Save the checkpoint of `step`. All ranks call it: each writes its part into one folder, `scratch`, which the
        main rank then seals.

        write: writes this rank's part. digests: returns those of the state, after all ranks have written. Raises
        CheckpointError.
        """
        ranks.from_main(lambda: shutil.rmtree(scratch, ignore_errors=True))  # left by a run that was killed here
        self._on_all_ranks(scratch, step, write)
        final = digests()
        self._on_all_ranks(scratch, step, lambda: self._seal(scratch, step, final))

    def _on_all_ranks(self, scratch: Path, step: int, work: Callable[[], None]) -> None:
        """Call `work`, which writes a part of the checkpoint in `scratch`. If it fails on any rank, the main rank
        deletes `scratch` and all ranks raise CheckpointError.
        """
        cause, problem = None, ""
        try:
            work()
        except (OSError, RuntimeError, SafetensorError) as error:  # RuntimeError: torch.save on a full disk
            # torch.save's message does not name a full disk.
            full = shutil.disk_usage(self.folder.parent).free < 2**20
            cause, problem = error, "disk full" if full else reason_of(error)[:300]
        for rank, theirs in enumerate(ranks.gather(problem)):
            if theirs:
                ranks.from_main(lambda: shutil.rmtree(scratch, ignore_errors=True))
                where = f" (rank {rank})" if ranks.count() > 1 else ""
                raise CheckpointError(f"the checkpoint of step {step} could not be written: {theirs}{where}") from cause

    def _seal(self, scratch: Path, step: int, digests: Mapping[str, str]) -> None:
        if ranks.is_main():
            write_text(scratch / FINAL, json.dumps(digests))
            seal(scratch, self.folder, step, self.run_identity)
            prune(self.folder, self.keep)
