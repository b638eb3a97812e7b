"""How a model is found, and which models and memories are refused."""

import json
import os
import shutil

import harness
from harness import PROMPT, Case, environment, run


class Lookup(Case):
    """--model as a path and as org/name."""

    def fake_cache(self, hub, commit="0123abc", reference="0123abc"):
        repository = os.path.join(hub, "models--some-org--some.model")
        snapshot = os.path.join(repository, "snapshots", commit)
        os.makedirs(snapshot)
        os.makedirs(os.path.join(repository, "refs"))
        for name in os.listdir(harness.MODEL):
            os.symlink(os.path.join(harness.MODEL, name), os.path.join(snapshot, name))
        with open(os.path.join(repository, "refs", "main"), "w", encoding="utf-8") as file:
            file.write(reference)
        return snapshot

    def info_path(self, **changes):
        out, _ = self.succeed(
            "info", "--model", "some-org/some.model", "--json", env=environment(**changes)
        )
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
                self.assertEqual(
                    self.info_path(**{"HOME": "/nonexistent", **changes}),
                    os.path.realpath(snapshot),
                )

    def test_hub_cache_wins_over_home(self):
        snapshot = self.fake_cache(self.path("hub"))
        self.fake_cache(self.path("home", "hub"))
        self.assertEqual(
            self.info_path(HF_HUB_CACHE=self.path("hub"), HF_HOME=self.path("home")),
            os.path.realpath(snapshot),
        )

    def test_generate_by_name(self):
        self.fake_cache(self.path("hub"))
        out, _ = self.succeed(
            "generate",
            "--model",
            "some-org/some.model",
            "--prompt",
            PROMPT,
            "--max-tokens",
            "4",
            env=environment(HF_HUB_CACHE=self.path("hub")),
        )
        self.assertEqual(out, self.generate("--prompt", PROMPT, "--max-tokens", "4")[0])

    def test_absent_model_prints_the_command_that_fetches_it(self):
        for command in (
            ["info"],
            ["generate", "--prompt", "x"],
            ["compare", "--prompt", "x"],
            ["plan", "--memory", "1GiB", "--context", "8"],
        ):
            self.refuse(
                1,
                *command,
                "--model",
                "some-org/absent",
                mentions=["some-org/absent", "download some-org/absent"],
                env=environment(HF_HUB_CACHE=self.path("hub")),
            )

    def test_reference_cannot_lead_out_of_the_cache(self):
        self.fake_cache(self.path("hub"), reference="../../../../outside")
        outside = self.path("outside")
        os.mkdir(outside)
        with open(os.path.join(outside, "config.json"), "w", encoding="utf-8") as file:
            file.write("{}")
        code, out, _ = run(
            "info",
            "--model",
            "some-org/some.model",
            "--json",
            env=environment(HF_HUB_CACHE=self.path("hub")),
        )
        if code == 0:
            self.assertNotIn("outside", json.loads(out)["path"])

    def test_paths_that_are_no_models(self):
        self.refuse(1, "info", "--model", self.path("absent"), mentions="absent")
        self.refuse(
            1, "info", "--model", os.path.join(harness.MODEL, "config.json"), mentions="folder"
        )
        self.refuse(1, "info", "--model", self.folder, mentions="config.json")
        deep = self.path(*["a folder with a long name"] * 8)
        os.makedirs(deep)
        self.refuse(1, "info", "--model", deep, mentions=os.path.join(deep, "config.json"))
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
        model = self.copy_model(
            config_json=self.config(model_type="llama", architectures=["LlamaForCausalLM"])
        )
        for command in (
            ["info"],
            ["generate", "--prompt", "x"],
            ["plan", "--memory", "1GiB", "--context", "8"],
        ):
            self.refuse(3, *command, "--model", model, mentions="llama")

    def test_experts(self):
        config = json.loads(self.model_file("config.json"))
        for name in ("hybrid_override_pattern", "layers_block_type"):
            if name in config:
                value = config[name]
                config[name] = value[:-1] + "E" if isinstance(value, str) else value[:-1] + ["moe"]
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
            self.refuse(
                4, command, "--model", model, "--prompt-file", "-", stdin=prompt, mentions="48"
            )

    def test_text_that_reaches_the_context(self):
        model = self.copy_model(config_json=self.config(max_position_embeddings=48))
        out, err = self.succeed(
            "generate",
            "--model",
            model,
            "--prompt",
            "word",
            "--max-tokens",
            "100",
            "--temperature",
            "1",
            "--json",
        )
        report = json.loads(out)
        if report["finish"] != "stop_token":
            self.assertEqual(report["finish"], "context")
            self.assertLessEqual(len(report["tokens"]), 48)
            self.assertIn("48", err)

    def test_plan_that_does_not_fit(self):
        code, _, err = run("plan", "--model", harness.MODEL, "--memory", "4KiB", "--context", "8")
        self.assertEqual(code, 4)
        self.assert_one_error_line(err)
        code, out, err = run(
            "plan", "--model", harness.MODEL, "--memory", "4KiB", "--context", "8", "--json"
        )
        self.assertEqual(code, 4)
        self.assertTrue(all(row["sequences"] == 0 for row in json.loads(out)["rows"]))
        self.assert_one_error_line(err)
