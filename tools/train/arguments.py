"""How the command line of every script here begins."""

from __future__ import annotations

import argparse
from pathlib import Path

TEXT = "output folder of fetch_text.py"


def parser(text: str, /, **paths: str) -> argparse.ArgumentParser:
    """Make a parser whose help is ``text``, with required paths: names and their help, in order."""
    result = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, meaning in paths.items():
        result.add_argument(name, type=Path, help=meaning)
    return result
