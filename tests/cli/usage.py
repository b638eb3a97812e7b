"""Options, help and what of a command line is refused."""

import json
import os
import re

import harness
from harness import Case


class Usage(Case):
    """Help, version, wrong command lines."""

    COMMANDS = ("generate", "compare", "info", "plan", "doctor")

    def test_help_has_examples(self):
        for arguments in [["--help"], *([command, "--help"] for command in self.COMMANDS)]:
            out, err = self.succeed(*arguments)
            self.assertIn("Examples:\n", out)
            self.assertIn("replayssm " + arguments[0] if len(arguments) > 1 else "generate", out)
            self.assertEqual(err, "")

    def test_help_needs_no_required_option(self):
        out, _ = self.succeed("plan", "--help")
        self.assertIn("--memory", out)

    def test_version(self):
        with open(os.path.join(harness.SOURCE, "CMakeLists.txt"), encoding="utf-8") as file:
            declared = re.search(r"^\s*VERSION ([0-9.]+)$", file.read(), re.MULTILINE).group(1)
        out, err = self.succeed("--version")
        self.assertEqual((out, err), (f"replayssm {declared}\n", ""))

    def test_no_command(self):
        self.refuse(2, mentions="--help")

    def test_unknown_command_lists_commands(self):
        self.refuse(2, "genrate", mentions=["'genrate'", *self.COMMANDS])

    def test_unknown_option(self):
        self.refuse_generate(2, "--nonsense", mentions="--nonsense")

    def test_refusals_name_what_was_given(self):
        model = ("--model", harness.MODEL, "--prompt", "x")
        self.refuse(2, "--fast", mentions="unknown option '--fast'")
        self.refuse(
            2, "generate", *model, "--max-token", "3", mentions="unknown option '--max-token'"
        )
        self.refuse(2, "generate", *model, "more", mentions="unexpected argument 'more'")
        self.refuse(2, "generate", *model, "--seed", mentions="--seed needs a value")
        self.refuse(2, "generate", *model, *model, mentions="--model may be given once")
        self.refuse(2, "info", "--", mentions="--model is required")
        self.refuse(2, "doctor", "--json=5", mentions="--json takes no value")

    def test_required_options(self):
        self.refuse(2, "generate", "--prompt", "x", mentions="--model")
        self.refuse(2, "generate", "--model", harness.MODEL, mentions="--prompt")
        self.refuse(2, "plan", "--model", harness.MODEL, "--context", "10", mentions="--memory")
        self.refuse(2, "plan", "--model", harness.MODEL, "--memory", "1GiB", mentions="--context")
        self.refuse(2, "info", mentions="--model")

    def test_hostile_numbers(self):
        huge = "9" * 40
        bad = {
            "--max-tokens": ["-1", "0", "1.5", "nan", "inf", "", " 4", "4 ", "4x", huge, "0x10"],
            "--window": ["0", "257", "-16", huge, "nan", ""],
            "--draft-tokens": ["0", "16", "-1", ""],
            "--n": ["0", "-1", "4097", huge, ""],
            "--threads": ["0", "-1", huge, ""],
            "--temperature": ["-1", "nan", "inf", "-nan", "1e9", "1e-30", "", "hot"],
            "--top-p": ["0", "-0.5", "1.1", "nan", "", huge],
            "--top-k": ["-1", "1.5", huge, ""],
            "--seed": ["-1", "1.5", "", huge, "0x", "0xgg"],
            "--decode": ["", "fast"],
            "--draft": ["", "tree"],
            "--dtype": ["", "f16", "F32"],
            "--log-level": ["", "loud"],
            "--prompt-file": [""],
        }
        for option, values in bad.items():
            prompt = [] if option == "--prompt-file" else ["--prompt", "x"]
            for value in values:
                with self.subTest(option=option, value=value):
                    self.refuse(
                        2,
                        "generate",
                        "--model",
                        harness.MODEL,
                        *prompt,
                        f"{option}={value}",
                        mentions=option,
                    )

    def test_hostile_sizes(self):
        sizes = ["", "0", "-5", "nan", "inf", "1e400GiB", "12 GiB", "GiB", "5XB", "9999999TiB"]
        bad = {
            "--memory": [*sizes, "0.0GiB", "9" * 30],
            "--context": ["0", "-1", "", "nan", "9" * 30],
        }
        good = {"--memory": "1GiB", "--context": "8"}
        for option, values in bad.items():
            for value in values:
                with self.subTest(option=option, value=value):
                    given = [f"{name}={size}" for name, size in {**good, option: value}.items()]
                    self.refuse(2, "plan", "--model", harness.MODEL, *given, mentions=option)

    def test_a_quoted_line_break_keeps_the_error_one_line(self):
        self.refuse_generate(2, "--seed", "a\nb\x1b[31m\r", mentions="\\n")

    def test_window_must_hold_a_step(self):
        self.refuse_generate(
            2, "--draft", "ngram", "--window", "4", "--draft-tokens", "4", mentions=["--window 5"]
        )

    def test_one_prompt_only(self):
        self.refuse_generate(2, "--prompt-file", "y", mentions="--prompt-file")

    def test_empty_prompts(self):
        empty = self.path("empty")
        with open(empty, "wb"):
            pass
        self.refuse(2, "generate", "--model", harness.MODEL, "--prompt", "", mentions="empty")
        self.refuse(
            2, "generate", "--model", harness.MODEL, "--prompt-file", empty, mentions="empty"
        )
        self.refuse(2, "generate", "--model", harness.MODEL, "--prompt-file", "-", mentions="empty")

    def test_unreadable_prompt_files(self):
        for path in (self.path("absent"), self.folder):
            given = ("--model", harness.MODEL, "--prompt-file", path)
            self.refuse(1, "generate", *given, mentions=path)

    def test_unknown_backend_lists_the_known(self):
        err = self.refuse_generate(2, "--backend", "abacus", mentions="'abacus'")
        doctor = json.loads(self.succeed("doctor", "--json")[0])
        for implementation in doctor["implementations"]:
            self.assertIn(implementation["name"], err)

    def test_backend_of_the_other_decode_mode(self):
        doctor = json.loads(self.succeed("doctor", "--json")[0])
        name = next(
            implementation["name"]
            for implementation in doctor["implementations"]
            if implementation["decode"] == "conventional"
        )
        self.refuse_generate(2, "--backend", name, mentions=["--decode conventional", name])
