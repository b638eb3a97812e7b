"""Runs the program as a user does and checks what docs/cli.md promises.

Needs Python's standard library only. Without group names all groups run:
    python3 cli_test.py --program build/bin/replayssm --source . --scratch /tmp/cli [Group ...]
"""

import argparse
import os
import sys
import unittest

import harness

# unittest runs what it finds here.
from facts import Facts  # noqa: F401
from refusals import Lookup, Refusals  # noqa: F401
from streams import Interrupt, Streams, Terminal  # noqa: F401
from texts import Compare, Generate  # noqa: F401
from usage import Usage  # noqa: F401


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--scratch", required=True)
    parser.add_argument("--model", help="another model folder than the bundled one")
    parser.add_argument("groups", nargs="*")
    arguments = parser.parse_args()
    harness.PROGRAM = os.path.abspath(arguments.program)
    harness.SOURCE = os.path.abspath(arguments.source)
    harness.SCRATCH = os.path.abspath(arguments.scratch)
    harness.MODEL = os.path.abspath(
        arguments.model or os.path.join(harness.SOURCE, "models", "austen-py-mamba2")
    )
    os.makedirs(harness.SCRATCH, exist_ok=True)
    if not os.path.isfile(os.path.join(harness.MODEL, "config.json")):
        sys.exit(f"no model in {harness.MODEL}")
    unittest.main(argv=[sys.argv[0], *arguments.groups], verbosity=2)


if __name__ == "__main__":
    main()
