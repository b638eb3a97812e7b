"""generate and compare: texts, JSON, seeds, drafts, continuations."""

import json
import re

import harness
from harness import PROMPT, Case


class Generate(Case):
    """What generate prints."""

    KEYS = [
        "text",
        "tokens",
        "decode",
        "draft",
        "tokens_per_s",
        "state_bytes_per_token",
        "accepted_per_step",
        "finish",
    ]

    def test_text_and_json_are_the_same(self):
        out, err = self.generate("--prompt", PROMPT, "--max-tokens", "24")
        report = self.generate_json("--prompt", PROMPT, "--max-tokens", "24")
        self.assertEqual(list(report), self.KEYS)
        self.assertEqual(
            out, report["text"] if report["text"].endswith("\n") else report["text"] + "\n"
        )
        self.assertGreater(len(report["text"]), 20)
        self.assertNotIn(report["text"].strip(), err)
        self.assertLessEqual(len(report["tokens"]), 24)
        self.assertGreater(report["tokens_per_s"], 0.0)
        self.assertEqual((report["decode"], report["draft"]), ("replay", "none"))
        self.assertEqual(report["accepted_per_step"], 1.0)

    def test_prompt_sources_agree(self):
        name = self.path("prompt.txt")
        with open(name, "w", encoding="utf-8") as file:
            file.write(PROMPT)
        options = ("--max-tokens", "8")
        expected = self.generate("--prompt", PROMPT, *options)[0]
        self.assertEqual(self.generate("--prompt-file", name, *options)[0], expected)
        self.assertEqual(
            self.generate("--prompt-file", "-", *options, stdin=PROMPT.encode())[0], expected
        )

    def test_prompt_of_any_text(self):
        for prompt in ("na\u00efve \U0001f600 \u4e2d\u6587", "\n", "-", "\x00\x01", " " * 500):
            out, _ = self.generate(
                "--prompt-file", "-", "--max-tokens", "4", "--json", stdin=prompt.encode()
            )
            json.loads(out)

    def test_prompt_that_is_not_text(self):
        for prompt in (b"\xff\xfe", b"abc\x80", b"\xed\xa0\x80", b"\xf0\x9f\x98"):
            self.refuse(
                2,
                "generate",
                "--model",
                harness.MODEL,
                "--prompt-file",
                "-",
                stdin=prompt,
                mentions="UTF-8",
            )

    def test_prompt_that_begins_with_dashes(self):
        self.generate("--prompt=--json", "--max-tokens", "2")

    def test_state_bytes(self):
        options = ("--prompt", PROMPT, "--max-tokens", "40")
        replay = self.generate_json(*options)
        conventional = self.generate_json(*options, "--decode", "conventional")
        self.assertEqual(conventional["decode"], "conventional")
        self.assertGreater(
            conventional["state_bytes_per_token"], 1.3 * replay["state_bytes_per_token"]
        )

    def test_drafts(self):
        # Greedy text of a small model repeats itself, which is what prompt lookup finds.
        options = ("--prompt", PROMPT, "--max-tokens", "200", "--draft", "ngram")
        report = self.generate_json(*options, "--draft-tokens", "4")
        self.assertEqual(report["draft"], "ngram")
        self.assertGreater(report["accepted_per_step"], 1.0)
        self.assertLessEqual(report["accepted_per_step"], 5.0)
        short = self.generate_json(*options, "--draft-tokens", "1")
        self.assertGreater(short["accepted_per_step"], 1.0)
        self.assertLessEqual(short["accepted_per_step"], 2.0)

    def test_continuations(self):
        options = ("--prompt", PROMPT, "--max-tokens", "16", "--temperature", "1", "--seed", "3")
        report = self.generate_json(*options, "--n", "3")
        self.assertEqual(len(report), 3)
        for item in report:
            self.assertEqual(list(item), self.KEYS)
        self.assertEqual(len({item["text"] for item in report}), 3)
        out, _ = self.generate(*options, "--n", "3")
        expected = "---\n".join(
            item["text"] if item["text"].endswith("\n") else item["text"] + "\n" for item in report
        )
        self.assertEqual(out, expected)

    def test_seeds(self):
        options = ("--prompt", PROMPT, "--max-tokens", "24", "--temperature", "1")
        first = self.generate_json(*options, "--seed", "7")
        again = self.generate_json(*options, "--seed", "0x7")
        other = self.generate_json(*options, "--seed", "8")
        self.assertEqual(first["tokens"], again["tokens"])
        self.assertNotEqual(first["tokens"], other["tokens"])

    def test_one_candidate_is_greedy(self):
        options = ("--prompt", PROMPT, "--max-tokens", "16")
        greedy = self.generate_json(*options)
        for choice in (("--top-k", "1"), ("--top-p", "0.000001"), ("--temperature", "0.001")):
            self.assertEqual(
                self.generate_json(*options, *choice)["tokens"], greedy["tokens"], choice
            )

    def test_top_p_means_sampling(self):
        options = ("--prompt", PROMPT, "--max-tokens", "24")
        greedy = self.generate_json(*options)
        sampled = self.generate_json(*options, "--top-p", "1", "--seed", "5")
        explicit = self.generate_json(*options, "--temperature", "1", "--seed", "5")
        self.assertNotEqual(sampled["tokens"], greedy["tokens"])
        self.assertEqual(sampled["tokens"], explicit["tokens"])

    def test_explain_goes_to_standard_error(self):
        options = ("--prompt", PROMPT, "--max-tokens", "4")
        plain_out, plain_err = self.generate(*options)
        out, err = self.generate(*options, "--explain")
        self.assertEqual(out, plain_out)
        self.assertGreater(len(err.splitlines()), len(plain_err.splitlines()))

    def test_forced_backend(self):
        doctor = json.loads(self.succeed("doctor", "--json")[0])
        for implementation in doctor["implementations"]:
            if not implementation["available"] or "mamba2" not in implementation["rules"]:
                continue
            _, err = self.generate(
                "--prompt",
                PROMPT,
                "--max-tokens",
                "4",
                "--explain",
                "--backend",
                implementation["name"],
                "--decode",
                implementation["decode"],
            )
            # --explain names the one that runs at the beginning of a line.
            self.assertRegex(err, rf"(?m)^{re.escape(implementation['name'])}:")

    def test_types_and_threads(self):
        for dtype in ("f32", "bf16", "auto"):
            self.generate("--prompt", PROMPT, "--max-tokens", "4", "--dtype", dtype)
        options = ("--prompt", PROMPT, "--max-tokens", "16", "--dtype", "f32")
        self.assertEqual(
            self.generate(*options, "--threads", "1")[0],
            self.generate(*options, "--threads", "3")[0],
        )

    def test_smallest_windows(self):
        options = ("--prompt", PROMPT, "--max-tokens", "20", "--dtype", "f32")
        for window in ("1", "5", "256"):
            report = self.generate_json(*options, "--window", window)
            self.assertGreater(len(report["tokens"]), 0)


class Compare(Case):
    """The main job of quickstart."""

    def test_report(self):
        out, err = self.succeed(
            "compare", "--model", harness.MODEL, "--prompt", PROMPT, "--max-tokens", "32"
        )
        self.assertEqual(err, "")
        titles = re.findall(r"^== (.*)$", out, re.MULTILINE)
        self.assertEqual(titles, ["conventional", "replay", "replay with ngram drafts"])
        report = self.succeed(
            "compare", "--model", harness.MODEL, "--prompt", PROMPT, "--max-tokens", "32", "--json"
        )[0]
        for title, item in zip(titles, json.loads(report)["runs"]):
            self.assertIn(f"== {title}\n{PROMPT}{item['text']}\n", out)
        for word in (
            "tokens/s",
            "state bytes a token",
            "tokens a step",
            "reference",
            "The decodings agree.",
            "Near-ties",
        ):
            self.assertIn(word, out)

    def test_json(self):
        out, _ = self.succeed(
            "compare", "--model", harness.MODEL, "--prompt", PROMPT, "--max-tokens", "64", "--json"
        )
        report = json.loads(out)
        self.assertTrue(report["agree"])
        self.assertGreater(report["bound"], 0.0)
        conventional, replay, drafted = report["runs"]
        self.assertEqual(conventional["decode"], "conventional")
        self.assertEqual((replay["decode"], replay["draft"]), ("replay", "none"))
        self.assertEqual((drafted["decode"], drafted["draft"]), ("replay", "ngram"))
        self.assertLess(replay["state_bytes_per_token"], conventional["state_bytes_per_token"])
        reference = conventional["tokens"]
        for item in (replay, drafted):
            end = item["first_difference"]
            if end < 0:
                self.assertEqual(item["tokens"], reference)
            else:
                self.assertEqual(item["tokens"][:end], reference[:end])
                self.assertGreaterEqual(end, report["first_near_tie"])
                self.assertGreaterEqual(report["first_near_tie"], 0)

    def test_same_text_as_generate(self):
        out, _ = self.succeed(
            "compare", "--model", harness.MODEL, "--prompt", PROMPT, "--max-tokens", "16", "--json"
        )
        for item in json.loads(out)["runs"]:
            if item["first_difference"] < 0 and item["draft"] == "none":
                alone = self.generate_json(
                    "--prompt", PROMPT, "--max-tokens", "16", "--decode", item["decode"]
                )
                self.assertEqual(alone["tokens"], item["tokens"])
