"""Small policies, which ship with the repository; the problems that they work on; what trains them; and the cache of
what is made on the spot."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

# A folder for each policy of train.RECIPES, in Hugging Face format. The weights are rounded to bfloat16 and are loaded
# as float32, which config.json asks for: every machine starts from the same bits.
SHIPPED = Path(__file__).with_name("shipped")


def cached_folder(final: Path, write: Callable[[Path], None]) -> Path:
    """Return `final`, the folder of a policy or a head; if it is not there, let `write` fill a folder that gets this
    name when it is complete.

    So an interrupted `write` leaves nothing that looks complete. While another process makes a folder beside `final`,
    this function waits: making a policy takes all cores, and two at once take far longer than one after the other.
    """
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(final.parent / ".lock"):
        if final.is_dir():  # another process has made it meanwhile
            return final
        scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=final.parent))
        try:
            write(scratch)
            os.rename(scratch, final)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return final
