#!/usr/bin/env python3
"""Fetch the training text from two Debian packages and write it as plain files.

The six novels come from ``r-cran-janeaustenr`` (texts in the public domain), the Python
documentation's sources from ``python3.11-doc`` (PSF licence). Needs ``apt-get`` and ``dpkg-deb``;
no R and no root. Output: ``OUT/austen/<book>.txt`` and ``OUT/python/<path>.rst``.
"""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import arguments

PACKAGES = ("r-cran-janeaustenr", "python3.11-doc")

# Type codes of R's serialisation format ("R Internals", section 1.8).
_SYMSXP, _LISTSXP, _CHARSXP, _LGLSXP, _INTSXP, _STRSXP, _VECSXP = (
    1,
    2,
    9,
    10,
    13,
    16,
    19,
)
_NILVALUE, _REFSXP = 254, 255


class RReader:
    """Reader for the part of R's XDR serialisation that data files of strings use."""

    def __init__(self, data: bytes) -> None:
        if data[:2] != b"X\n":
            raise ValueError("R data: expected the XDR format marker 'X\\n'")
        self._data = data
        self._at = 2
        self._refs: list[object] = []
        version, _, _ = self._int(), self._int(), self._int()
        if version == 3:
            length = self._int()
            self._at += length  # skips the native encoding's name
        elif version != 2:
            raise ValueError(
                f"R data: serialisation version {version}, supported are 2 and 3"
            )

    def _int(self) -> int:
        (value,) = struct.unpack_from(">i", self._data, self._at)
        self._at += 4
        return value

    def read(self) -> object:
        """Read one item.

        Returns
        -------
        object
            ``None``, ``str``, ``list`` (vectors) or ``(values, attributes)`` where the item has
            attributes; pairlists come back as ``dict``.
        """
        flags = self._int()
        kind, has_attr, has_tag = flags & 0xFF, bool(flags & 0x200), bool(flags & 0x400)
        if kind == _NILVALUE:
            return None
        if kind == _REFSXP:
            return self._refs[(flags >> 8) - 1]
        if kind == _SYMSXP:
            symbol = self.read()
            self._refs.append(symbol)
            return symbol
        if kind == _CHARSXP:
            length = self._int()
            if length < 0:
                return None
            raw = self._data[self._at : self._at + length]
            self._at += length
            return raw.decode(
                "utf-8" if flags & 0x8000 or not flags & 0x4000 else "latin-1"
            )
        if kind == _LISTSXP:
            result: dict[object, object] = {}
            if has_attr:
                self.read()
            tag = self.read() if has_tag else None
            result[tag] = self.read()
            rest = self.read()
            if isinstance(rest, dict):
                result.update(rest)
            return result
        if kind in (_LGLSXP, _INTSXP):
            values: list[object] = [self._int() for _ in range(self._int())]
        elif kind in (_STRSXP, _VECSXP):
            values = [self.read() for _ in range(self._int())]
        else:
            raise ValueError(
                f"R data: type {kind} is not one that these files should hold"
            )
        return (values, self.read()) if has_attr else values


def read_lazy_load(stem: Path) -> dict[str, list[str]]:
    """Read every character vector of an R lazy-load database.

    Parameters
    ----------
    stem
        Path of the ``.rdx``/``.rdb`` pair without its ending.
    """
    index, names_attr = RReader(
        gzip.decompress(stem.with_suffix(".rdx").read_bytes())
    ).read()
    blob = stem.with_suffix(".rdb").read_bytes()
    parts = dict(zip(names_attr["names"], index, strict=True))
    variables, attributes = parts["variables"]
    books = {}
    for name, (offset, length) in zip(attributes["names"], variables, strict=True):
        block = blob[offset : offset + length]
        (expanded,) = struct.unpack(">I", block[:4])
        data = zlib.decompress(block[4:])
        if len(data) != expanded:
            raise ValueError(
                f"{name}: block expands to {len(data)} bytes, its header says {expanded}"
            )
        lines = RReader(data).read()
        books[name] = lines[0] if isinstance(lines, tuple) else lines
    return books


def unwrap(lines: list[str]) -> str:
    """Join the wrapped lines of each paragraph; paragraphs are separated by an empty line."""
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line.strip())
        elif paragraphs[-1]:
            paragraphs.append([])
    return "\n\n".join(" ".join(p) for p in paragraphs if p) + "\n"


def main() -> int:
    parser = arguments.parser(__doc__, out="folder for the text, made if absent")
    parser.add_argument(
        "--debs", type=Path, help="folder that already holds the two .deb files"
    )
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        debs, root = Path(args.debs or scratch), Path(scratch) / "root"
        if args.debs is None:
            subprocess.run(["apt-get", "download", *PACKAGES], cwd=scratch, check=True)
        for package in PACKAGES:
            found = sorted(debs.glob(f"{package}_*.deb"))
            if not found:
                sys.exit(f"no {package}_*.deb in {debs}")
            print(f"text from {found[-1].name}")
            subprocess.run(["dpkg-deb", "-x", str(found[-1]), str(root)], check=True)

        books = read_lazy_load(root / "usr/lib/R/site-library/janeaustenr/data/Rdata")
        (args.out / "austen").mkdir(parents=True, exist_ok=True)
        for name, lines in books.items():
            (args.out / "austen" / f"{name}.txt").write_text(
                unwrap(lines), encoding="utf-8"
            )

        sources = root / "usr/share/doc/python3.11/html/_sources"
        count = 0
        for source in sorted(sources.rglob("*.rst.txt")):
            target = args.out / "python" / source.relative_to(sources).with_suffix("")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            count += 1
    print(f"{len(books)} novels and {count} documents in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
