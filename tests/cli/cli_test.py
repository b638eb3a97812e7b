"""Runs the program as a user does and checks what docs/cli.md promises.

Over 400 lines because it is one list of promises, in groups that share their helpers. Needs Python's
standard library only. Without group names all groups run:
    python3 cli_test.py --program build/bin/replayssm --source . --scratch /tmp/cli [Group ...]
"""

import argparse
import errno
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = ""
SOURCE = ""
SCRATCH = ""
MODEL = ""

PROMPT = "It is a truth universally acknowledged, that a single man"
# Sanitizer builds are slow; a hang is still found.
TIMEOUT_S = 300
# How long the end may take of a program that was told to stop.
STOP_S = 60


def wait_or_kill(process):
    """Exit code of a process that is expected to stop; None if it does not."""
    try:
        return process.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return None


def environment(**changes):
    """The caller's environment without what changes the program, plus `changes`."""
    dropped = ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "NO_COLOR", "TERM")
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    env.update(changes)
    return env


def run(*arguments, stdin=b"", env=None):
    """Runs the program; returns (exit code, standard output, standard error) as text."""
    done = subprocess.run(
        [PROGRAM, *arguments], input=stdin, capture_output=True, timeout=TIMEOUT_S,
        env=env if env is not None else environment(), check=False)
    return done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")


class Case(unittest.TestCase):
    """What every group needs."""

    maxDiff = 2000

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=SCRATCH)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def succeed(self, *arguments, **options):
        code, out, err = run(*arguments, **options)
        self.assertEqual(code, 0, f"{arguments}: {err}")
        return out, err

    def refuse(self, code, *arguments, mentions=(), **options):
        """The call fails with `code`, prints nothing but one error line that holds `mentions`."""
        found, out, err = run(*arguments, **options)
        self.assertEqual(found, code, f"{arguments}: {out!r} {err!r}")
        self.assertEqual(out, "", arguments)
        self.assert_one_error_line(err)
        for text in [mentions] if isinstance(mentions, str) else mentions:
            self.assertIn(text, err, arguments)
        return err

    def assert_one_error_line(self, err):
        self.assertRegex(err, r"\Areplayssm: error: [^\n\r]{10,}\n\Z")

    def generate(self, *arguments, **options):
        return self.succeed("generate", "--model", MODEL, *arguments, **options)

    def generate_json(self, *arguments, **options):
        out, _ = self.generate("--json", *arguments, **options)
        self.assertEqual(out.count("\n"), 1, "JSON is one line")
        return json.loads(out)

    def copy_model(self, **replaced):
        """A folder with the model's files linked, some replaced: name with _ for . -> bytes, or
        None to leave it out."""
        folder = self.path("model")
        os.mkdir(folder)
        for name in os.listdir(MODEL):
            if name.replace(".", "_") not in replaced:
                os.symlink(os.path.join(MODEL, name), os.path.join(folder, name))
        for name, content in replaced.items():
            if content is not None:
                stem, suffix = name.rsplit("_", 1)
                with open(os.path.join(folder, stem + "." + suffix), "wb") as file:
                    file.write(content)
        return folder

    def model_file(self, name):
        with open(os.path.join(MODEL, name), "rb") as file:
            return file.read()


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
        with open(os.path.join(SOURCE, "CMakeLists.txt"), encoding="utf-8") as file:
            declared = re.search(r"^\s*VERSION ([0-9.]+)$", file.read(), re.MULTILINE).group(1)
        out, err = self.succeed("--version")
        self.assertEqual((out, err), (f"replayssm {declared}\n", ""))

    def test_no_command(self):
        self.refuse(2, mentions="--help")

    def test_unknown_command_lists_commands(self):
        self.refuse(2, "genrate", mentions=["'genrate'", *self.COMMANDS])

    def test_unknown_option(self):
        self.refuse(2, "generate", "--model", MODEL, "--prompt", "x", "--nonsense",
                    mentions="--nonsense")

    def test_required_options(self):
        self.refuse(2, "generate", "--prompt", "x", mentions="--model")
        self.refuse(2, "generate", "--model", MODEL, mentions="--prompt")
        self.refuse(2, "plan", "--model", MODEL, "--context", "10", mentions="--memory")
        self.refuse(2, "plan", "--model", MODEL, "--memory", "1GiB", mentions="--context")
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
                    self.refuse(2, "generate", "--model", MODEL, *prompt, f"{option}={value}",
                                mentions=option)

    def test_hostile_sizes(self):
        for size in ["", "0", "-5", "nan", "inf", "1e400GiB", "12 GiB", "GiB", "5XB", "9999999TiB",
                     "0.0GiB", "9" * 30]:
            with self.subTest(size=size):
                self.refuse(2, "plan", "--model", MODEL, "--context", "8", f"--memory={size}",
                            mentions="--memory")
        for context in ["0", "-1", "", "nan", "9" * 30]:
            with self.subTest(context=context):
                self.refuse(2, "plan", "--model", MODEL, "--memory", "1GiB",
                            f"--context={context}", mentions="--context")

    def test_a_quoted_line_break_keeps_the_error_one_line(self):
        self.refuse(2, "generate", "--model", MODEL, "--prompt", "x", "--seed", "a\nb\x1b[31m\r",
                    mentions="\\n")

    def test_window_must_hold_a_step(self):
        self.refuse(2, "generate", "--model", MODEL, "--prompt", "x", "--draft", "ngram",
                    "--window", "4", "--draft-tokens", "4", mentions=["--window 5"])

    def test_one_prompt_only(self):
        self.refuse(2, "generate", "--model", MODEL, "--prompt", "x", "--prompt-file", "y",
                    mentions="--prompt-file")

    def test_empty_prompts(self):
        empty = self.path("empty")
        with open(empty, "wb"):
            pass
        self.refuse(2, "generate", "--model", MODEL, "--prompt", "", mentions="empty")
        self.refuse(2, "generate", "--model", MODEL, "--prompt-file", empty, mentions="empty")
        self.refuse(2, "generate", "--model", MODEL, "--prompt-file", "-", mentions="empty")

    def test_unreadable_prompt_files(self):
        self.refuse(1, "generate", "--model", MODEL, "--prompt-file", self.path("absent"),
                    mentions="absent")
        self.refuse(1, "generate", "--model", MODEL, "--prompt-file", self.folder,
                    mentions=self.folder)

    def test_unknown_backend_lists_the_known(self):
        err = self.refuse(2, "generate", "--model", MODEL, "--prompt", "x", "--backend", "abacus",
                          mentions="'abacus'")
        doctor = json.loads(self.succeed("doctor", "--json")[0])
        for implementation in doctor["implementations"]:
            self.assertIn(implementation["name"], err)

    def test_backend_of_the_other_decode_mode(self):
        doctor = json.loads(self.succeed("doctor", "--json")[0])
        name = next(implementation["name"] for implementation in doctor["implementations"]
                    if implementation["decode"] == "conventional")
        self.refuse(2, "generate", "--model", MODEL, "--prompt", "x", "--backend", name,
                    mentions=["--decode conventional", name])


class Lookup(Case):
    """--model as a path and as org/name."""

    def fake_cache(self, hub, commit="0123abc", reference="0123abc"):
        repository = os.path.join(hub, "models--some-org--some.model")
        snapshot = os.path.join(repository, "snapshots", commit)
        os.makedirs(snapshot)
        os.makedirs(os.path.join(repository, "refs"))
        for name in os.listdir(MODEL):
            os.symlink(os.path.join(MODEL, name), os.path.join(snapshot, name))
        with open(os.path.join(repository, "refs", "main"), "w", encoding="utf-8") as file:
            file.write(reference)
        return snapshot

    def info_path(self, **changes):
        out, _ = self.succeed("info", "--model", "some-org/some.model", "--json",
                              env=environment(**changes))
        return os.path.realpath(json.loads(out)["path"])

    def test_each_variable(self):
        layouts = {
            "hub": {"HF_HUB_CACHE": self.path("hub")},
            "home/hub": {"HF_HOME": self.path("home")},
            "xdg/huggingface/hub": {"XDG_CACHE_HOME": self.path("xdg")},
            "user/.cache/huggingface/hub": {"HOME": self.path("user")},
        }
        for folder, changes in layouts.items():
            with self.subTest(folder=folder):
                snapshot = self.fake_cache(self.path(*folder.split("/")))
                self.assertEqual(self.info_path(**{"HOME": "/nonexistent", **changes}),
                                 os.path.realpath(snapshot))

    def test_hub_cache_wins_over_home(self):
        snapshot = self.fake_cache(self.path("hub"))
        self.fake_cache(self.path("home", "hub"))
        self.assertEqual(
            self.info_path(HF_HUB_CACHE=self.path("hub"), HF_HOME=self.path("home")),
            os.path.realpath(snapshot))

    def test_generate_by_name(self):
        self.fake_cache(self.path("hub"))
        out, _ = self.succeed("generate", "--model", "some-org/some.model", "--prompt", PROMPT,
                              "--max-tokens", "4",
                              env=environment(HF_HUB_CACHE=self.path("hub")))
        self.assertEqual(out, self.generate("--prompt", PROMPT, "--max-tokens", "4")[0])

    def test_absent_model_prints_the_command_that_fetches_it(self):
        for command in (["info"], ["generate", "--prompt", "x"], ["compare", "--prompt", "x"],
                        ["plan", "--memory", "1GiB", "--context", "8"]):
            self.refuse(1, *command, "--model", "some-org/absent",
                        mentions=["some-org/absent", "download some-org/absent"],
                        env=environment(HF_HUB_CACHE=self.path("hub")))

    def test_reference_cannot_lead_out_of_the_cache(self):
        self.fake_cache(self.path("hub"), reference="../../../../outside")
        outside = self.path("outside")
        os.mkdir(outside)
        with open(os.path.join(outside, "config.json"), "w", encoding="utf-8") as file:
            file.write("{}")
        code, out, _ = run("info", "--model", "some-org/some.model", "--json",
                           env=environment(HF_HUB_CACHE=self.path("hub")))
        if code == 0:
            self.assertNotIn("outside", json.loads(out)["path"])

    def test_paths_that_are_no_models(self):
        self.refuse(1, "info", "--model", self.path("absent"), mentions="absent")
        self.refuse(1, "info", "--model", os.path.join(MODEL, "config.json"), mentions="folder")
        self.refuse(1, "info", "--model", self.folder, mentions="config.json")
        for name in ("a/b/c", "../x", "org/..", "/", "x" * 5000):
            code, out, err = run("info", "--model", name, env=environment(HF_HUB_CACHE="/absent"))
            self.assertEqual((code, out), (1, ""), name[:20])
            self.assert_one_error_line(err)


class Refusals(Case):
    """Exit codes of models that are broken, not supported or do not fit."""

    def config(self, **changes):
        config = json.loads(self.model_file("config.json"))
        config.update(changes)
        return json.dumps(config).encode()

    def test_other_architecture(self):
        model = self.copy_model(config_json=self.config(model_type="llama",
                                                        architectures=["LlamaForCausalLM"]))
        for command in (["info"], ["generate", "--prompt", "x"],
                        ["plan", "--memory", "1GiB", "--context", "8"]):
            self.refuse(3, *command, "--model", model, mentions="llama")

    def test_experts(self):
        config = json.loads(self.model_file("config.json"))
        for name in ("hybrid_override_pattern", "layers_block_type"):
            if name in config:
                value = config[name]
                config[name] = (value[:-1] + "E" if isinstance(value, str)
                                else value[:-1] + ["moe"])
        model = self.copy_model(config_json=json.dumps(config).encode())
        err = self.refuse(3, "info", "--model", model)
        self.assertRegex(err, r"(?i)expert|moe")

    def test_broken_config(self):
        for content in (b"", b"{", b"[]", b"\x00\xff" * 50, b'{"model_type": 5}'):
            with self.subTest(content=content):
                shutil.rmtree(self.path("model"), ignore_errors=True)
                model = self.copy_model(config_json=content)
                code, out, err = run("info", "--model", model)
                self.assertIn(code, (1, 3))
                self.assertEqual(out, "")
                self.assert_one_error_line(err)

    def test_truncated_weights(self):
        weights = self.model_file("model.safetensors")
        for size in (0, 7, 8, 100, len(weights) // 2, len(weights) - 1):
            with self.subTest(size=size):
                shutil.rmtree(self.path("model"), ignore_errors=True)
                model = self.copy_model(model_safetensors=weights[:size])
                self.refuse(1, "generate", "--model", model, "--prompt", "x", "--max-tokens", "1")

    def test_missing_files(self):
        model = self.copy_model(model_safetensors=None)
        self.refuse(1, "generate", "--model", model, "--prompt", "x", mentions="safetensors")
        shutil.rmtree(model)
        model = self.copy_model(tokenizer_json=None)
        self.refuse(1, "generate", "--model", model, "--prompt", "x", mentions="tokenizer")

    def test_prompt_longer_than_the_context(self):
        model = self.copy_model(config_json=self.config(max_position_embeddings=48))
        prompt = ("word " * 100).encode()
        for command in ("generate", "compare"):
            self.refuse(4, command, "--model", model, "--prompt-file", "-", stdin=prompt,
                        mentions="48")

    def test_text_that_reaches_the_context(self):
        model = self.copy_model(config_json=self.config(max_position_embeddings=48))
        out, err = self.succeed("generate", "--model", model, "--prompt", "word", "--max-tokens",
                                "100", "--temperature", "1", "--json")
        report = json.loads(out)
        if report["finish"] != "stop_token":
            self.assertEqual(report["finish"], "context")
            self.assertLessEqual(len(report["tokens"]), 48)
            self.assertIn("48", err)

    def test_plan_that_does_not_fit(self):
        code, _, err = run("plan", "--model", MODEL, "--memory", "4KiB", "--context", "8")
        self.assertEqual(code, 4)
        self.assert_one_error_line(err)
        code, out, err = run("plan", "--model", MODEL, "--memory", "4KiB", "--context", "8",
                             "--json")
        self.assertEqual(code, 4)
        self.assertTrue(all(row["sequences"] == 0 for row in json.loads(out)["rows"]))
        self.assert_one_error_line(err)


class Generate(Case):
    """What generate prints."""

    KEYS = ["text", "tokens", "decode", "draft", "tokens_per_s", "state_bytes_per_token",
            "accepted_per_step", "finish"]

    def test_text_and_json_are_the_same(self):
        out, err = self.generate("--prompt", PROMPT, "--max-tokens", "24")
        report = self.generate_json("--prompt", PROMPT, "--max-tokens", "24")
        self.assertEqual(list(report), self.KEYS)
        self.assertEqual(out, report["text"] if report["text"].endswith("\n")
                         else report["text"] + "\n")
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
            self.generate("--prompt-file", "-", *options, stdin=PROMPT.encode())[0], expected)

    def test_prompt_of_any_text(self):
        for prompt in ("na\u00efve \U0001f600 \u4e2d\u6587", "\n", "-", "\x00\x01", " " * 500):
            out, _ = self.generate("--prompt-file", "-", "--max-tokens", "4", "--json",
                                   stdin=prompt.encode())
            json.loads(out)

    def test_prompt_that_is_not_text(self):
        for prompt in (b"\xff\xfe", b"abc\x80", b"\xed\xa0\x80", b"\xf0\x9f\x98"):
            self.refuse(2, "generate", "--model", MODEL, "--prompt-file", "-", stdin=prompt,
                        mentions="UTF-8")

    def test_prompt_that_begins_with_dashes(self):
        self.generate("--prompt=--json", "--max-tokens", "2")

    def test_state_bytes(self):
        options = ("--prompt", PROMPT, "--max-tokens", "40")
        replay = self.generate_json(*options)
        conventional = self.generate_json(*options, "--decode", "conventional")
        self.assertEqual(conventional["decode"], "conventional")
        self.assertGreater(conventional["state_bytes_per_token"],
                           1.3 * replay["state_bytes_per_token"])

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
            item["text"] if item["text"].endswith("\n") else item["text"] + "\n"
            for item in report)
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
            self.assertEqual(self.generate_json(*options, *choice)["tokens"], greedy["tokens"],
                             choice)

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
            _, err = self.generate("--prompt", PROMPT, "--max-tokens", "4", "--explain",
                                   "--backend", implementation["name"],
                                   "--decode", implementation["decode"])
            # --explain names the one that runs at the beginning of a line.
            self.assertRegex(err, rf"(?m)^{re.escape(implementation['name'])}:")

    def test_types_and_threads(self):
        for dtype in ("f32", "bf16", "auto"):
            self.generate("--prompt", PROMPT, "--max-tokens", "4", "--dtype", dtype)
        options = ("--prompt", PROMPT, "--max-tokens", "16", "--dtype", "f32")
        self.assertEqual(self.generate(*options, "--threads", "1")[0],
                         self.generate(*options, "--threads", "3")[0])

    def test_smallest_windows(self):
        options = ("--prompt", PROMPT, "--max-tokens", "20", "--dtype", "f32")
        for window in ("1", "5", "256"):
            report = self.generate_json(*options, "--window", window)
            self.assertGreater(len(report["tokens"]), 0)


class Streams(Case):
    """Standard output holds results only; what happens when it is gone."""

    def test_log_levels(self):
        options = ("--prompt", PROMPT, "--max-tokens", "4")
        out, err = self.generate(*options, "--log-level", "error")
        self.assertEqual(err, "")
        info_out, info_err = self.generate(*options)
        self.assertEqual(info_out, out)
        self.assertIn("tokens/s", info_err)
        _, debug_err = self.generate(*options, "--log-level", "debug")
        self.assertIn("debug: loaded", debug_err)
        self.assertNotIn("debug:", info_err)

    def test_log_level_before_the_command(self):
        _, err = self.succeed("--log-level", "error", "generate", "--model", MODEL, "--prompt",
                              PROMPT, "--max-tokens", "2")
        self.assertEqual(err, "")

    def test_no_escapes_and_no_progress_in_files(self):
        out, err = self.generate("--prompt", PROMPT, "--max-tokens", "8")
        self.assertNotIn("\x1b", out + err)
        self.assertNotIn("\r", out + err)

    def test_text_comes_while_it_is_made(self):
        with subprocess.Popen([PROGRAM, "generate", "--model", MODEL, "--prompt", PROMPT,
                               "--max-tokens", "100000", "--log-level", "error"],
                              stdout=subprocess.PIPE, env=environment()) as process:
            first = os.read(process.stdout.fileno(), 1)
            running = process.poll() is None
            process.kill()
        self.assertEqual(len(first), 1)
        self.assertTrue(running)

    def test_reader_that_leaves(self):
        with subprocess.Popen([PROGRAM, "generate", "--model", MODEL, "--prompt", PROMPT,
                               "--max-tokens", "100000"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=environment()) as process:
            os.read(process.stdout.fileno(), 1)
            process.stdout.close()
            code = wait_or_kill(process)  # standard error is short, so the pipe cannot fill
            err = process.stderr.read().decode()
        self.assertEqual(code, 1)
        self.assert_one_error_line(err)
        self.assertIn("standard output", err)

    def test_full_device(self):
        with open("/dev/full", "wb") as full:
            for command in (["--help"], ["doctor"], ["info", "--model", MODEL],
                            ["generate", "--model", MODEL, "--prompt", "x", "--max-tokens", "3"]):
                done = subprocess.run([PROGRAM, *command], stdout=full, stderr=subprocess.PIPE,
                                      timeout=TIMEOUT_S, env=environment(), check=False)
                self.assertEqual(done.returncode, 1, command)
                self.assert_one_error_line(done.stderr.decode())

    def test_closed_streams(self):
        done = subprocess.run(
            ["/bin/sh", "-c", 'exec "$0" "$@" >&-', PROGRAM, "info", "--model", MODEL],
            stderr=subprocess.PIPE, timeout=TIMEOUT_S, env=environment(), check=False)
        self.assertEqual(done.returncode, 1)
        self.assert_one_error_line(done.stderr.decode())
        done = subprocess.run(
            ["/bin/sh", "-c", 'exec "$0" "$@" 2>&- <&-', PROGRAM, "generate", "--model", MODEL,
             "--prompt", PROMPT, "--max-tokens", "4"],
            stdout=subprocess.PIPE, timeout=TIMEOUT_S, env=environment(), check=False)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stdout.decode(),
                         self.generate("--prompt", PROMPT, "--max-tokens", "4")[0])


class Interrupt(Case):
    """SIGINT finishes the step, prints what there is, exits 130."""

    def interrupt(self, *arguments, after_output=True):
        with subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=environment()) as process:
            out = b""
            if after_output:
                while len(out) < 40:
                    part = os.read(process.stdout.fileno(), 4096)
                    if not part:
                        break
                    out += part
            else:
                time.sleep(1.5)
            process.send_signal(signal.SIGINT)
            try:
                rest, err = process.communicate(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                rest, err = process.communicate()
        self.assertEqual(process.returncode, 130, err)
        return (out + rest).decode(), err.decode()

    def assert_interrupted(self, err):
        self.assertRegex(err, r"replayssm: error: interrupted[^\n]*\n\Z")
        self.assertEqual(err.count("replayssm: error:"), 1)

    def test_text(self):
        out, err = self.interrupt("generate", "--model", MODEL, "--prompt", PROMPT,
                                  "--max-tokens", "1000000")
        self.assertTrue(out.endswith("\n"))
        self.assert_interrupted(err)

    def test_json_is_whole(self):
        # Greedy: this model's text then repeats itself and never reaches a stop token.
        out, err = self.interrupt("generate", "--model", MODEL, "--prompt", PROMPT, "--json",
                                  "--max-tokens", "1000000", "--n", "2", after_output=False)
        for item in json.loads(out):
            self.assertEqual(item["finish"], "cancelled")
        self.assert_interrupted(err)

    def test_compare(self):
        out, err = self.interrupt("compare", "--model", MODEL, "--prompt", PROMPT,
                                  "--max-tokens", "1000000")
        self.assertIn("== conventional", out)
        self.assert_interrupted(err)


class Terminal(Case):
    """Colours and progress exist on a terminal only, colours only without NO_COLOR."""

    def on_terminal(self, *arguments, **changes):
        """Standard error on a pseudo-terminal; returns what it showed."""
        master, slave = pty.openpty()
        with subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.DEVNULL, stderr=slave,
                              env=environment(TERM="xterm", **changes)) as process:
            os.close(slave)
            shown = b""
            while True:
                ready, _, _ = select.select([master], [], [], TIMEOUT_S)
                self.assertTrue(ready, "no output and no end")
                try:
                    part = os.read(master, 4096)
                except OSError as error:
                    self.assertEqual(error.errno, errno.EIO)  # the other end is closed
                    break
                if not part:
                    break
                shown += part
        os.close(master)
        return shown.decode()

    def test_colour(self):
        wrong = ("generate", "--nonsense")
        self.assertIn("\x1b[", self.on_terminal(*wrong))
        self.assertNotIn("\x1b[", self.on_terminal(*wrong, NO_COLOR="1"))
        self.assertIn("\x1b[", self.on_terminal(*wrong, NO_COLOR=""))
        self.assertEqual(self.on_terminal("generate", "--seed", "a\nb").count("\n"), 1)

    def test_progress(self):
        options = ("generate", "--model", MODEL, "--prompt", PROMPT, "--max-tokens", "8")
        self.assertIn("\rprompt, ", self.on_terminal(*options))
        quiet = self.on_terminal(*options, "--log-level", "error")
        self.assertEqual(quiet, "")

    def test_no_escapes_with_no_color(self):
        shown = self.on_terminal("generate", "--model", MODEL, "--prompt", PROMPT, "--max-tokens",
                                 "8", "--n", "2", NO_COLOR="1")
        self.assertIn("warning", shown)
        self.assertNotIn("\x1b", shown)


class Facts(Case):
    """info, plan, doctor."""

    def test_info(self):
        out, err = self.succeed("info", "--model", MODEL)
        self.assertEqual(err, "")
        facts = json.loads(self.succeed("info", "--model", MODEL, "--json")[0])
        config = json.loads(self.model_file("config.json"))
        self.assertEqual(facts["hidden"], config["hidden_size"])
        self.assertEqual(facts["vocab"], config["vocab_size"])
        self.assertEqual(facts["architecture"], "nemotron_h")
        recurrent = facts["recurrent"]
        layers = facts["layers"].count("mamba2")
        self.assertEqual(
            facts["bytes_per_sequence"]["state"],
            4 * layers * recurrent["heads"] * recurrent["value_dim"] * recurrent["key_dim"])
        self.assertIn(f"{facts['parameters']:,}", out)

    def test_info_counts_the_parameters_of_the_file(self):
        weights = self.model_file("model.safetensors")
        size = int.from_bytes(weights[:8], "little")
        header = json.loads(weights[8:8 + size])
        elements = 0
        for name, tensor in header.items():
            if name != "__metadata__":
                count = 1
                for extent in tensor["shape"]:
                    count *= extent
                elements += count
        facts = json.loads(self.succeed("info", "--model", MODEL, "--json")[0])
        self.assertEqual(facts["parameters"], elements)

    def plan(self, *arguments):
        out, _ = self.succeed("plan", "--model", MODEL, "--context", "512", "--json", *arguments)
        return json.loads(out)

    def test_sizes(self):
        for text, size in (("1GiB", 1 << 30), ("1gib", 1 << 30), ("1GB", 10 ** 9),
                           ("512MiB", 512 << 20), ("1073741824", 1 << 30), ("1.5GiB", 3 << 29),
                           ("1073741824B", 1 << 30), ("2TB", 2 * 10 ** 12)):
            self.assertEqual(self.plan("--memory", text)["memory_bytes"], size, text)

    def test_plan_adds_up(self):
        plan = self.plan("--memory", "1GiB")
        modes = set()
        for row in plan["rows"]:
            modes.add((row["decode"], row["step_tokens"]))
            self.assertEqual(
                row["sequence_bytes"],
                row["kv_bytes"] + row["state_bytes"] + row["ring_bytes"] + row["conv_bytes"]
                + row["control_bytes"])
            free = plan["memory_bytes"] - plan["weight_bytes"]
            self.assertLessEqual(row["sequences"] * row["sequence_bytes"], free)
            self.assertGreater((row["sequences"] + 1) * row["sequence_bytes"], free)
        self.assertIn(("conventional", 1), modes)
        self.assertIn(("replay", 1), modes)
        self.assertTrue(any(tokens > 1 for _, tokens in modes))
        out, err = self.succeed("plan", "--model", MODEL, "--context", "512", "--memory", "1GiB")
        self.assertIn("sequences", out)
        self.assertEqual(err, "")

    def test_plan_knows_the_window(self):
        small = self.plan("--memory", "1GiB", "--window", "8")
        large = self.plan("--memory", "1GiB", "--window", "64")
        for one, other in zip(small["rows"], large["rows"]):
            if one["decode"] == "replay":
                self.assertLess(one["ring_bytes"], other["ring_bytes"])

    def test_doctor(self):
        report = json.loads(self.succeed("doctor", "--json")[0])
        self.assertEqual(list(report), ["version", "cpu", "memory_bytes", "model_cache",
                                        "implementations", "missing"])
        self.assertGreater(report["cpu"]["cores"], 0)
        self.assertGreaterEqual(len(report["implementations"]), 2)
        out, err = self.succeed("doctor")
        self.assertEqual(err, "")
        for implementation in report["implementations"]:
            self.assertIn(implementation["name"], out)

    def test_doctor_says_what_is_missing(self):
        cache = self.path("nowhere")
        report = json.loads(
            self.succeed("doctor", "--json", env=environment(HF_HUB_CACHE=cache))[0])
        self.assertFalse(report["model_cache"]["exists"])
        self.assertTrue(any(cache in line for line in report["missing"]))
        os.mkdir(cache)
        report = json.loads(
            self.succeed("doctor", "--json", env=environment(HF_HUB_CACHE=cache))[0])
        self.assertTrue(report["model_cache"]["exists"])
        self.assertFalse(any(cache in line for line in report["missing"]))


class Compare(Case):
    """The main job of quickstart."""

    def test_report(self):
        out, err = self.succeed("compare", "--model", MODEL, "--prompt", PROMPT, "--max-tokens",
                                "32")
        self.assertEqual(err, "")
        titles = re.findall(r"^== (.*)$", out, re.MULTILINE)
        self.assertEqual(titles, ["conventional", "replay", "replay with ngram drafts"])
        report = self.succeed("compare", "--model", MODEL, "--prompt", PROMPT, "--max-tokens",
                              "32", "--json")[0]
        for title, item in zip(titles, json.loads(report)["runs"]):
            self.assertIn(f"== {title}\n{PROMPT}{item['text']}\n", out)
        for word in ("tokens/s", "state bytes a token", "tokens a step", "reference",
                     "The decodings agree.", "Near-ties"):
            self.assertIn(word, out)

    def test_json(self):
        out, _ = self.succeed("compare", "--model", MODEL, "--prompt", PROMPT, "--max-tokens",
                              "64", "--json")
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
        out, _ = self.succeed("compare", "--model", MODEL, "--prompt", PROMPT, "--max-tokens",
                              "16", "--json")
        for item in json.loads(out)["runs"]:
            if item["first_difference"] < 0 and item["draft"] == "none":
                alone = self.generate_json("--prompt", PROMPT, "--max-tokens", "16", "--decode",
                                           item["decode"])
                self.assertEqual(alone["tokens"], item["tokens"])


def main():
    global PROGRAM, SOURCE, SCRATCH, MODEL
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--scratch", required=True)
    parser.add_argument("--model", help="another model folder than the bundled one")
    parser.add_argument("groups", nargs="*")
    arguments = parser.parse_args()
    PROGRAM = os.path.abspath(arguments.program)
    SOURCE = os.path.abspath(arguments.source)
    SCRATCH = os.path.abspath(arguments.scratch)
    MODEL = os.path.abspath(arguments.model or os.path.join(SOURCE, "models", "austen-py-mamba2"))
    os.makedirs(SCRATCH, exist_ok=True)
    if not os.path.isfile(os.path.join(MODEL, "config.json")):
        sys.exit(f"no model in {MODEL}")
    unittest.main(argv=[sys.argv[0], *arguments.groups], verbosity=2)


if __name__ == "__main__":
    main()
