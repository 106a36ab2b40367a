"""`python -m das doctor` checks whether das works on this machine. `python -m das run` runs a training script with
das."""

import argparse
import sys

from das.commands import run
from das.commands.doctor import as_json, as_text, examine, healthy
from das.general.side_output import keep_printing


def main() -> int:
    """Run the command and return its exit code. `doctor` returns 0 if das can run an engine on this machine, else 1."""
    parser = argparse.ArgumentParser(prog="python -m das", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="check versions, device and compiler; compare tokens (20 seconds)")
    doctor.add_argument(
        "model", nargs="?", help="compare this model's tokens, and time it on a GPU; without it, a tiny random model's"
    )
    doctor.add_argument("--speed", action="store_true", help="time the model on a CPU, too")
    # Named here, because doctor must start where nothing is installed that das/engine imports.
    kinds = ("bits", "distribution")
    doctor.add_argument("--exact", choices=kinds, help="of the engines that are timed (docs/exactness.md)")
    doctor.add_argument("--json", action="store_true", help="print one JSON object instead of words")
    script = commands.add_parser("run", help="run a training script of TRL or verl with das, as it is")
    run.add_arguments(script)
    arguments = parser.parse_args()
    if arguments.command == "run":
        return run.run(arguments)
    checks = examine(arguments.model, arguments.exact, arguments.speed)
    print(as_json(checks) if arguments.json else as_text(checks))
    return 0 if healthy(checks) else 1


if __name__ == "__main__":
    keep_printing()
    sys.exit(main())
