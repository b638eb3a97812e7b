"""Checks README.md and docs/ against the code they speak of.

    python3 documents_test.py --program build/bin/replayssm --source .
"""

import argparse
import os
import re
import subprocess
import sys
import unittest

PROGRAM = ""
SOURCE = ""


def read(*names):
    with open(os.path.join(SOURCE, *names), encoding="utf-8") as file:
        return file.read()


def documents():
    names = ["README.md", "CONTRIBUTING.md"]
    names += [os.path.join("docs", name) for name in sorted(os.listdir(os.path.join(SOURCE, "docs")))
              if name.endswith(".md")]
    return names


def help_text(*arguments):
    return subprocess.run([PROGRAM, *arguments, "--help"], capture_output=True, check=True,
                          text=True, timeout=120).stdout


class Documents(unittest.TestCase):
    def test_the_example_is_the_file(self):
        blocks = re.findall(r"^```cpp\n(.*?)^```$", read("README.md"), re.MULTILINE | re.DOTALL)
        self.assertIn(read("examples", "minimal.cpp"), blocks)

    def test_links_lead_somewhere(self):
        for name in documents():
            text = re.sub(r"^```.*?^```$", "", read(name), flags=re.MULTILINE | re.DOTALL)
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                if re.match(r"[a-z]+:", target):
                    continue
                path, _, anchor = target.partition("#")
                file = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
                with self.subTest(document=name, target=target):
                    self.assertTrue(os.path.exists(os.path.join(SOURCE, file)))
                    if anchor:
                        headings = re.findall(r"^#+ (.*)$", read(file), re.MULTILINE)
                        anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
                                   for heading in headings]
                        self.assertIn(anchor, anchors)

    def test_files_that_are_named_exist(self):
        # Paths in code marks that begin with a folder of this repository; * stands for anything.
        pattern = re.compile(
            r"`((?:include|src|apps|oracle|tests|tools|examples|docs|cmake|models)/[\w./*-]+)`")
        found = 0
        for name in documents():
            for path in pattern.findall(read(name)):
                if "*" in path or path.isupper() or "ROOM" in path:
                    continue
                found += 1
                with self.subTest(document=name, path=path):
                    self.assertTrue(os.path.exists(os.path.join(SOURCE, path)), path)
        self.assertGreater(found, 10)

    def test_the_two_commands(self):
        readme = read("README.md")
        for command in ("./quickstart", "./test"):
            self.assertRegex(readme, rf"(?m)^{re.escape(command)}\b")
            self.assertTrue(os.access(os.path.join(SOURCE, command[2:]), os.X_OK), command)

    def test_cli_page_names_every_option(self):
        page = read("docs", "cli.md")
        for command in ("generate", "compare", "info", "plan", "doctor"):
            section = page.split(f"\n## {command}\n")[1].split("\n## ")[0]
            options = set(re.findall(r"^  (?:-h,)?(--[\w-]+)", help_text(command), re.MULTILINE))
            self.assertIn("--help", options)
            named = set(re.findall(r"--[a-z][\w-]*", section))
            self.assertEqual(options - {"--help"} - named, set(), command)
            self.assertEqual(named - options, set(), f"{command}: options that do not exist")
            if command == "generate":  # whose section has a row an option
                rows = re.findall(r"^\| `(--[\w-]+)", section, re.MULTILINE)
                self.assertEqual(sorted(rows), sorted(options - {"--help"}))

    def test_readme_names_every_command(self):
        readme = read("README.md")
        for command in re.findall(r"^  ([a-z]+)  ", help_text().split("Subcommands:")[1],
                                  re.MULTILINE):
            self.assertIn(f"`{command}`", readme)


def main():
    global PROGRAM, SOURCE
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--source", required=True)
    arguments = parser.parse_args()
    PROGRAM = os.path.abspath(arguments.program)
    SOURCE = os.path.abspath(arguments.source)
    unittest.main(argv=[sys.argv[0]], verbosity=2)


if __name__ == "__main__":
    main()
