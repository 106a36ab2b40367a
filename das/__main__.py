"""`python -m das doctor`: can this machine run das, and what will work?"""

import argparse
import sys

from das.doctor import as_json, as_text, examine


def main() -> int:
    """Run the command; return 0 if an engine of das works here, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m das", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="check versions, hooks, device and memory; compare tokens (20 seconds)")
    doctor.add_argument("--json", action="store_true", help="print one JSON object instead of words")
    arguments = parser.parse_args()
    report = examine()
    print(as_json(report) if arguments.json else as_text(report))
    return 0 if report.healthy else 1


if __name__ == "__main__":
    sys.exit(main())
