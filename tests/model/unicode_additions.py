"""Writes src/model/unicode_additions.cpp and tests/model/data/unicode_sets.txt.

Needs Python 3.11, whose ``unicodedata`` has the Unicode version of Debian's PCRE2 (14.0), and the
package ``tokenizers`` (0.23.3 was used), whose regular expressions are the reference:

    python3.11 tests/model/unicode_additions.py && clang-format -i src/model/unicode_additions.cpp
"""

import pathlib
import unicodedata

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

ROOT = pathlib.Path(__file__).resolve().parents[2]
CATEGORIES = (
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp Cc Cf Co"
).split()
SCRIPTS = (
    "Han Hiragana Katakana Hangul Latin Cyrillic Greek Arabic Hebrew Thai Devanagari Bengali"
).split()
# Sets that are rewritten for other reasons than new characters.
OTHERS = [
    r"\s", r"\S", r"\w", r"\W", r"\d", r"\D", r"\h", r"\H", r"\v", r"[\w\s]", r"\P{L}", r"\p{^N}",
    r"[^\s\p{L}\p{N}]", r"[^\r\n\p{L}\p{N}]", r"[\p{L}\p{M}]", ".", r"(?m:.)", r"(?i:s)", r"(?i:k)",
    r"(?i:t)", r"(?i:[a-z])", r"(?i:[^a-z])", r"\x{e9}", r"\u00e9", r"[\s\S]", r"^.", r".$",
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
    r"[^\p{L}&&[^\p{Han}]]", r"[\p{L}&&\p{Han}]", r"[[^\p{Han}]&&\p{L}&&[^\p{Lu}\p{Ll}]]",
    r"[a-f&&d-z]", r"[^a-f&&d-z]", r"[a-z&&[aeiou]&&[^i]]", r"[^\s\w&&[^,.]]", r"[&a-c]",
]
POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, POINTS))


def matched(pattern: str) -> set[int]:
    split = Split(Regex(pattern), "removed", invert=True)
    return {ord(piece) for piece, _ in split.pre_tokenize_str(TEXT)}


def ranges(points: set[int]) -> list[list[int]]:
    out: list[list[int]] = []
    for point in sorted(points):
        if out and out[-1][1] == point - 1:
            out[-1][1] = point
        else:
            out.append([point, point])
    return out


def fingerprint(points: set[int]) -> int:
    """FNV-1a, 64 bits, over the code points as four little-endian bytes each."""
    value = 0xCBF29CE484222325
    for point in sorted(points):
        for byte in point.to_bytes(4, "little"):
            value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def main() -> None:
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    old = {c: unicodedata.category(chr(c)) for c in POINTS}
    tables = []
    for name in CATEGORIES + SCRIPTS:
        points = matched(rf"\p{{{name}}}")
        if name in CATEGORIES:
            added = {c for c in points if not old[c].startswith(name)}
        else:
            added = {c for c in points if old[c] == "Cn"}
        if added:
            tables.append((name, ranges(added), len(added)))
    lines = [
        "// What Unicode 15 to 16 added, as the regular expressions of the package tokenizers 0.23.3 know it,",
        "// beyond Unicode 14. Written by tests/model/unicode_additions.py.",
        "//",
        "// With these every set but one equals the package's on all 1,112,064 code points: U+1171E moved from",
        "// Mn to Mc, and PCRE2's Mn still has it. \\p{C} and \\p{Cn} lost what the others gained and are refused.",
        "//",
        "// Code points added, by set: "
        + ", ".join(f"{name} {count}" for name, _, count in tables[:8]) + ",",
    ]
    rest = [f"{name} {count}" for name, _, count in tables[8:]]
    for start in range(0, len(rest), 9):
        lines.append("// " + ", ".join(rest[start:start + 9]) + ("," if start + 9 < len(rest) else "."))
    lines += [
        '#include "model/unicode_additions.hpp"', "",
        "namespace replayssm::model {", "namespace {", "",
        "struct Addition {", "  std::string_view name;", "  std::string_view ranges;", "};", "",
        "constexpr Addition kAdditions[] = {",
    ]
    for name, spans, _ in tables:
        pieces = [
            rf"\x{{{a:x}}}" if a == b else rf"\x{{{a:x}}}-\x{{{b:x}}}" for a, b in spans
        ]
        rows, row = [], ""
        for piece in pieces:
            if len(row) + len(piece) > 80:
                rows.append(row)
                row = ""
            row += piece
        rows.append(row)
        lines.append(f'    {{"{name}",')
        lines += [f'     R"({row})"' for row in rows[:-1]] + [f'     R"({rows[-1]})"}},']
    lines += [
        "};", "", "}  // namespace", "",
        "std::string_view unicode_additions(std::string_view set) {",
        "  for (const Addition& addition : kAdditions) {",
        "    if (addition.name == set) return addition.ranges;",
        "  }", "  return {};", "}", "", "}  // namespace replayssm::model", "",
    ]
    (ROOT / "src/model/unicode_additions.cpp").write_text("\n".join(lines))

    sets = [rf"\p{{{name}}}" for name in CATEGORIES + SCRIPTS if name != "Mn"] + OTHERS
    with open(ROOT / "tests/model/data/unicode_sets.txt", "w") as out:
        out.write("# pattern, number of code points it matches, FNV-1a of them; "
                  "from tests/model/unicode_additions.py\n")
        for pattern in sets:
            points = matched(pattern)
            out.write(f"{len(points)} {fingerprint(points):016x} {pattern}\n")


if __name__ == "__main__":
    main()
