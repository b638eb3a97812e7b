"""Standard streams, interruption and terminals."""

import errno
import json
import os
import pty
import select
import signal
import subprocess
import time

import harness
from harness import PROMPT, STOP_S, TIMEOUT_S, Case, environment, generation, start, wait_or_kill


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

    def test_what_a_text_without_a_step_took(self):
        _, one = self.generate("--prompt", PROMPT, "--max-tokens", "1")
        self.assertIn("1 token; prompt", one)
        self.assertNotIn("a step", one)
        _, two = self.generate("--prompt", PROMPT, "--max-tokens", "2")
        self.assertIn("2 tokens, ", two)
        self.assertIn("1.00 tokens a step", two)

    def test_log_level_before_the_command(self):
        _, err = self.succeed("--log-level", "error", *generation("--max-tokens", "2"))
        self.assertEqual(err, "")

    def test_no_escapes_and_no_progress_in_files(self):
        out, err = self.generate("--prompt", PROMPT, "--max-tokens", "8")
        self.assertNotIn("\x1b", out + err)
        self.assertNotIn("\r", out + err)

    def test_text_comes_while_it_is_made(self):
        command = generation("--max-tokens", "100000", "--log-level", "error")
        with start(*command, stdout=subprocess.PIPE) as process:
            first = os.read(process.stdout.fileno(), 1)
            running = process.poll() is None
            process.kill()
        self.assertEqual(len(first), 1)
        self.assertTrue(running)

    def test_reader_that_leaves(self):
        command = generation("--max-tokens", "100000")
        with start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            os.read(process.stdout.fileno(), 1)
            process.stdout.close()
            code = wait_or_kill(process)  # standard error is short, so the pipe cannot fill
            err = process.stderr.read().decode()
        self.assertEqual(code, 1)
        self.assert_one_error_line(err)
        self.assertIn("standard output", err)

    def test_full_device(self):
        with open("/dev/full", "wb") as full:
            for command in (
                ["--help"],
                ["doctor"],
                ["info", "--model", harness.MODEL],
                ["generate", "--model", harness.MODEL, "--prompt", "x", "--max-tokens", "3"],
            ):
                done = subprocess.run(
                    [harness.PROGRAM, *command],
                    stdout=full,
                    stderr=subprocess.PIPE,
                    timeout=TIMEOUT_S,
                    env=environment(),
                    check=False,
                )
                self.assertEqual(done.returncode, 1, command)
                self.assert_one_error_line(done.stderr.decode())

    def test_closed_streams(self):
        def without(closed, *command, **streams):
            return subprocess.run(
                ["/bin/sh", "-c", f'exec "$0" "$@" {closed}', harness.PROGRAM, *command],
                timeout=TIMEOUT_S,
                env=environment(),
                check=False,
                **streams,
            )

        info = ("info", "--model", harness.MODEL)
        done = without(">&-", *info, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        self.assert_one_error_line(done.stderr.decode())
        options = ("--max-tokens", "4")
        done = without("2>&- <&-", *generation(*options), stdout=subprocess.PIPE)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stdout.decode(), self.generate("--prompt", PROMPT, *options)[0])


class Interrupt(Case):
    """SIGINT finishes the step, prints what there is, exits 130."""

    def interrupt(self, *arguments, after_output=True):
        with start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
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
        out, err = self.interrupt(*generation("--max-tokens", "1000000"))
        self.assertTrue(out.endswith("\n"))
        self.assert_interrupted(err)

    def test_json_is_whole(self):
        # Greedy: this model's text then repeats itself and never reaches a stop token.
        command = generation("--json", "--max-tokens", "1000000", "--n", "2")
        out, err = self.interrupt(*command, after_output=False)
        for item in json.loads(out):
            self.assertEqual(item["finish"], "cancelled")
        self.assert_interrupted(err)

    def test_compare(self):
        out, err = self.interrupt(
            "compare", "--model", harness.MODEL, "--prompt", PROMPT, "--max-tokens", "1000000"
        )
        self.assertIn("== conventional", out)
        self.assert_interrupted(err)


class Terminal(Case):
    """Colours and progress exist on a terminal only, colours only without NO_COLOR."""

    def on_terminal(self, *arguments, **changes):
        """Standard error on a pseudo-terminal; returns what it showed."""
        master, slave = pty.openpty()
        env = environment(TERM="xterm", **changes)
        with start(*arguments, env=env, stdout=subprocess.DEVNULL, stderr=slave):
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
        options = generation("--max-tokens", "8")
        self.assertIn("\rprompt, ", self.on_terminal(*options))
        quiet = self.on_terminal(*options, "--log-level", "error")
        self.assertEqual(quiet, "")

    def test_no_escapes_with_no_color(self):
        command = generation("--max-tokens", "8", "--n", "2")
        shown = self.on_terminal(*command, NO_COLOR="1")
        self.assertIn("warning", shown)
        self.assertNotIn("\x1b", shown)
