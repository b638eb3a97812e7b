"""The two corpora as documents, and the fixed split into training and held-out text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

# Per novel, the pieces [begin, end) in hundredths of its paragraphs that are held out.
HELD_OUT_PIECES = ((30, 32), (70, 72))
# A document of the Python documentation is held out if the SHA-256 of its path, modulo 100, is
# below this.
HELD_OUT_PERCENT = 4


@dataclass(frozen=True)
class Document:
    """One contiguous piece of text."""

    corpus: str
    name: str
    text: str
    held_out: bool


def load(folder: Path) -> list[Document]:
    """Read what ``fetch_text.py`` wrote.

    Parameters
    ----------
    folder
        The output folder of ``fetch_text.py``.

    Returns
    -------
    list of Document
        In a fixed order. A novel gives alternating training and held-out pieces, each a run of
        whole paragraphs; a documentation source is one document.
    """
    documents: list[Document] = []
    for path in sorted((folder / "austen").glob("*.txt")):
        paragraphs = path.read_text(encoding="utf-8").strip().split("\n\n")
        cuts, flags = [0], [False]
        for begin, end in HELD_OUT_PIECES:
            cuts += [begin * len(paragraphs) // 100, end * len(paragraphs) // 100]
            flags += [True, False]
        cuts.append(len(paragraphs))
        for i, flag in enumerate(flags):
            text = "\n\n".join(paragraphs[cuts[i] : cuts[i + 1]]) + "\n"
            documents.append(Document("austen", f"{path.stem}#{i}", text, flag))
    for path in sorted((folder / "python").rglob("*.rst")):
        name = path.relative_to(folder / "python").as_posix()
        text = path.read_text(encoding="utf-8")
        if text.strip():
            digest = int.from_bytes(hashlib.sha256(name.encode()).digest(), "big")
            documents.append(
                Document("python", name, text, digest % 100 < HELD_OUT_PERCENT)
            )
    if not documents:
        raise FileNotFoundError(f"no text in {folder}: run fetch_text.py first")
    return documents
