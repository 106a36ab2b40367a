"""A child of os.fork() drafts, whatever other threads did while its parent forked."""

import os
import signal
import threading
import time

from das.drafter import HistoryDrafter

PATIENCE_S = 60  # a child needs milliseconds; one that waits for a lock waits for ever


def test_children_draft_while_threads_of_their_parent_draft() -> None:
    drafter, stop = HistoryDrafter(), threading.Event()
    text = list(range(200)) * 20

    def draft(name: str) -> None:
        drafter.begin(name, "p", [])
        while not stop.is_set():
            drafter.observe(name, text[:50])
            drafter.propose([name], [16])

    threads = [threading.Thread(target=draft, args=(f"thread {i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                drafter.begin("child", "p", [])
                drafter.observe("child", text[:20])
                os._exit(0 if drafter.propose(["child"], [16])[0].tokens else 1)
            assert ended(child) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def ended(child: int) -> int | None:
    """Return a child's exit status, or None if it hangs; then it is killed."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
