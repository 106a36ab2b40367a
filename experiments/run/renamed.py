"""Settings that have a new name. Using the old name gives one line that says the new one."""

# Old key -> new key, as they are written on the command line.
RENAMED = {
    "drafter.others": "drafter.cross_problem_tokens",
    "task.slots": "task.max_num_seqs",
    "task.most": "task.max_tokens",
}


def renamed(override: str) -> str | None:
    """The new name of the key in `override` (KEY=VALUE), or None if the key has not changed its name."""
    key = override.lstrip("+~").split("=", 1)[0]
    return RENAMED.get(key.removeprefix("vary."))
