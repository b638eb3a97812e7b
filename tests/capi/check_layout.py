"""Compares the layout a build prints with the frozen listing of version 0.1.

Fields and values must be as they were. A struct may have grown at its end, never shrunk; new structs,
fields behind the old ones and new values are fine.

Arguments: the frozen listing, then the command that prints the current one (a program, or an emulator
and a program).
"""

import subprocess
import sys


def listing(text: str) -> dict[tuple[str, str], list[int]]:
    """Maps (kind, name) to the numbers of its line."""
    entries = {}
    for line in text.splitlines():
        kind, name, *numbers = line.split()
        entries[kind, name] = [int(number) for number in numbers]
    return entries


def differences(frozen: str, current: str) -> list[str]:
    """Lines of `frozen` that `current` breaks."""
    now = listing(current)
    broken = []
    for (kind, name), numbers in listing(frozen).items():
        given = now.get((kind, name))
        grown = kind == "struct" and given is not None and given[0] >= numbers[0]
        if given != numbers and not grown:
            broken.append(f"{kind} {name}: was {numbers}, now {given}")
    return broken


def main() -> int:
    frozen_path, *command = sys.argv[1:]
    with open(frozen_path, encoding="utf-8") as file:
        frozen = file.read()
    current = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    broken = differences(frozen, current)
    # What this check must reject: a field moved, a value changed, a struct shrunk, a name gone.
    first_field = next(line for line in frozen.splitlines() if line.startswith("field"))
    name = first_field.split()[1]
    for twin in (
        current.replace(f"field {name} 0 ", f"field {name} 8 "),
        current.replace("value REPLAYSSM_UNSUPPORTED 5", "value REPLAYSSM_UNSUPPORTED 6"),
        current.replace(f"field {name} ", f"field {name}_renamed "),
        current.replace("struct replayssm_rows ", "struct replayssm_rows 1 "),
    ):
        if not differences(frozen, twin):
            print("the check accepted a broken layout")
            return 1
    for line in broken:
        print(line)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
