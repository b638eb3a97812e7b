"""What the groups of tests of the command line share: the program, its environment, a model folder."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

# Set by cli_test.py before the tests run.
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


def generation(*arguments):
    """The command line that continues PROMPT with the test model."""
    return ("generate", "--model", MODEL, "--prompt", PROMPT, *arguments)


def start(*arguments, env=None, **streams):
    """The program while it runs; `streams` as Popen takes them."""
    environ = env if env is not None else environment()
    return subprocess.Popen([PROGRAM, *arguments], env=environ, **streams)


def run(*arguments, stdin=b"", env=None):
    """Runs the program; returns (exit code, standard output, standard error) as text."""
    done = subprocess.run(
        [PROGRAM, *arguments],
        input=stdin,
        capture_output=True,
        timeout=TIMEOUT_S,
        env=env if env is not None else environment(),
        check=False,
    )
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

    def refuse_generate(self, code, *arguments, mentions=()):
        """refuse() of generate with the test model and a prompt."""
        options = ("generate", "--model", MODEL, "--prompt", "x", *arguments)
        return self.refuse(code, *options, mentions=mentions)

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
