"""An engine's process: it answers until its pipe is closed, and its death is explained in one line."""

from types import SimpleNamespace
from typing import Any

import pytest

from das.cluster.process_places import EngineProcess, ProcessPlaces
from das.errors import EngineDied


def test_a_process_answers_raises_and_ends() -> None:
    """EngineHost has no engine yet, so that the process builds none."""
    places = ProcessPlaces()
    actor = places.start_actor(0)
    reference = places.call(actor, "where", "nowhere")
    while not places.answered([reference], timeout_s=1.0):
        pass
    assert places.answer(reference) == (actor.process.pid, "", {})
    with pytest.raises(AttributeError, match="nothing"):
        places.answer(places.call(actor, "nothing"))
    places.kill(actor, 0, "")
    assert actor.process.exitcode == 0  # it was not killed
    dying = places.start_actor(1)
    dying.process.kill()
    with pytest.raises(EngineDied, match=r"^the engine's process has died \(exit code -9; out of memory\?\)"):
        places.answer(places.call(dying, "where", "nowhere"))


@pytest.mark.parametrize(
    ("code", "answered", "why"),
    [
        (1, False, 'does the script lack `if __name__ == "__main__":`?'),
        (1, True, "what it printed says why"),
        (-9, True, "out of memory?"),
        (-9, False, "out of memory?"),
    ],
)
def test_what_a_dead_engine_is_said_to_have_died_of(code: int, answered: bool, why: str) -> None:
    """A script without a main guard is suspected only until the engine is built."""
    dead: Any = SimpleNamespace(_answered=answered, process=SimpleNamespace(exitcode=code, join=lambda timeout: None))
    assert str(EngineProcess._gone(dead)) == f"the engine's process has died (exit code {code}; {why})"
