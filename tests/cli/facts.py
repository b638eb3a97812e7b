"""info, plan and doctor."""

import json
import os

import harness
from harness import Case, environment


class Facts(Case):
    """info, plan, doctor."""

    def test_info(self):
        out, err = self.succeed("info", "--model", harness.MODEL)
        self.assertEqual(err, "")
        facts = json.loads(self.succeed("info", "--model", harness.MODEL, "--json")[0])
        config = json.loads(self.model_file("config.json"))
        self.assertEqual(facts["hidden"], config["hidden_size"])
        self.assertEqual(facts["vocab"], config["vocab_size"])
        self.assertEqual(facts["architecture"], "nemotron_h")
        recurrent = facts["recurrent"]
        layers = facts["layers"].count("mamba2")
        self.assertEqual(
            facts["bytes_per_sequence"]["state"],
            4 * layers * recurrent["heads"] * recurrent["value_dim"] * recurrent["key_dim"],
        )
        self.assertIn(f"{facts['parameters']:,}", out)
        # One and several.
        for count, noun in ((recurrent["groups"], "group"), (recurrent["heads"], "head")):
            self.assertRegex(out, rf"\b{count} {noun}{'' if count == 1 else 's'}\b")

    def test_info_counts_the_parameters_of_the_file(self):
        weights = self.model_file("model.safetensors")
        size = int.from_bytes(weights[:8], "little")
        header = json.loads(weights[8 : 8 + size])
        elements = 0
        for name, tensor in header.items():
            if name != "__metadata__":
                count = 1
                for extent in tensor["shape"]:
                    count *= extent
                elements += count
        facts = json.loads(self.succeed("info", "--model", harness.MODEL, "--json")[0])
        self.assertEqual(facts["parameters"], elements)

    def plan(self, *arguments):
        out, _ = self.succeed(
            "plan", "--model", harness.MODEL, "--context", "512", "--json", *arguments
        )
        return json.loads(out)

    def test_sizes(self):
        for text, size in (
            ("1GiB", 1 << 30),
            ("1gib", 1 << 30),
            ("1GB", 10**9),
            ("512MiB", 512 << 20),
            ("1073741824", 1 << 30),
            ("1.5GiB", 3 << 29),
            ("1073741824B", 1 << 30),
            ("2TB", 2 * 10**12),
        ):
            self.assertEqual(self.plan("--memory", text)["memory_bytes"], size, text)

    def test_plan_adds_up(self):
        plan = self.plan("--memory", "1GiB")
        modes = set()
        for row in plan["rows"]:
            modes.add((row["decode"], row["step_tokens"]))
            self.assertEqual(
                row["sequence_bytes"],
                row["kv_bytes"]
                + row["state_bytes"]
                + row["ring_bytes"]
                + row["conv_bytes"]
                + row["control_bytes"],
            )
            free = plan["memory_bytes"] - plan["weight_bytes"]
            self.assertLessEqual(row["sequences"] * row["sequence_bytes"], free)
            self.assertGreater((row["sequences"] + 1) * row["sequence_bytes"], free)
        self.assertIn(("conventional", 1), modes)
        self.assertIn(("replay", 1), modes)
        self.assertTrue(any(tokens > 1 for _, tokens in modes))
        out, err = self.succeed(
            "plan", "--model", harness.MODEL, "--context", "512", "--memory", "1GiB"
        )
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
        self.assertEqual(
            list(report),
            ["version", "cpu", "memory_bytes", "model_cache", "implementations", "missing"],
        )
        self.assertGreater(report["cpu"]["cores"], 0)
        self.assertGreaterEqual(len(report["implementations"]), 2)
        out, err = self.succeed("doctor")
        self.assertEqual(err, "")
        for implementation in report["implementations"]:
            self.assertIn(implementation["name"], out)

    def test_doctor_says_what_is_missing(self):
        cache = self.path("nowhere")
        report = json.loads(
            self.succeed("doctor", "--json", env=environment(HF_HUB_CACHE=cache))[0]
        )
        self.assertFalse(report["model_cache"]["exists"])
        self.assertTrue(any(cache in line for line in report["missing"]))
        os.mkdir(cache)
        report = json.loads(
            self.succeed("doctor", "--json", env=environment(HF_HUB_CACHE=cache))[0]
        )
        self.assertTrue(report["model_cache"]["exists"])
        self.assertFalse(any(cache in line for line in report["missing"]))
