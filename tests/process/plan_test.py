#!/usr/bin/env python3
"""`pliant plan`, as users call it."""

import json
import os
import pathlib
import tempfile
import unittest

import launched


def plan(*words):
    return launched.run("plan", *words)


def summary(*words):
    done = plan(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def layout(**sizes):
    """Two matrices, sharded over tp and replicated over the rest."""
    return {"format": "pliant.layout/1",
            "mesh": {"axes": [{"name": name, "size": size} for name, size in sizes.items()],
                     "ranks_per_host": 2},
            "tensors": [{"name": name, "dtype": "f32", "shape": [64, 32]} for name in ("v", "w")],
            "rules": [{"match": "*", "shard": [{"dim": 0, "axes": ["tp"]}]}]}


class Planning(unittest.TestCase):
    def test_models(self):
        for words in (("gpt3-6.7b", "dp=8,tp=8", "dp=8,tp=16"),
                      ("llama3-70b", "dp=2,tp=8,pp=4,zero=1", "dp=6,tp=4,pp=2,zero=3"),
                      ("qwen3-30b-a3b", "dp=8,ep=8", "dp=4,ep=2,tp=4,zero=1")):
            model, before, after = words
            with self.subTest(model=model):
                found = summary("--model", model, "--from", before, "--to", after)
                self.assertEqual(found["bytes_moved"], found["bytes_lower_bound"])
                self.assertEqual(found["bytes_total"],
                                 found["bytes_moved"] + found["bytes_in_place"])
                self.assertEqual(sum(link["bytes"] for link in found["links"]),
                                 found["bytes_moved"])
                self.assertGreater(found["plan_ms"], 0)
                self.assertGreater(found["memory_bytes"], 1 << 20)
                self.assertEqual(found["gone"], [])

    def test_choosing_members_moves_less(self):
        words = ("--model", "gpt3-xl", "--from", "dp=2,tp=4,pp=2", "--to", "dp=4,tp=4,pp=2")
        kept = summary(*words)
        chosen = summary(*words, "--remap")
        self.assertLess(chosen["bytes_moved"], kept["bytes_moved"])
        self.assertEqual(chosen["bytes_moved"], chosen["bytes_lower_bound"])

    def test_the_table(self):
        done = plan("--model", "gpt3-xl", "--from", "tp=8", "--to", "dp=2,tp=4")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("tp 8 -> 4", "in place", "moved", "lower bound", "predicted", "host"):
            self.assertIn(word, done.stdout)

    def test_what_is_gone_is_named(self):
        done = plan("--model", "gpt-tiny", "--from", "dp=2,tp=2", "--to", "tp=2", "--slots", "4",
                    "--lost", "1,3", "--json")
        self.assertEqual(done.returncode, 1)
        gone = json.loads(done.stdout)["gone"]
        self.assertIn("decoder.layers.0.mlp.linear_fc1.weight", {part["tensor"] for part in gone})

    def test_two_runs_are_equal(self):
        words = ("--model", "moe-tiny", "--from", "dp=4,ep=4", "--to", "dp=2,tp=2,zero=1")
        with tempfile.TemporaryDirectory() as folder:
            saved = os.path.join(folder, "a.plan")
            self.assertEqual(plan(*words, "--save", saved).returncode, 0)
            self.assertEqual(plan(*words, "--diff", saved).returncode, 0)
            other = plan(*words[:-1], "dp=4,tp=2,zero=1", "--diff", saved)
            self.assertEqual(other.returncode, 1, other.stderr)
            self.assertIn("in the new plan alone", other.stdout)


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, name, document):
        path = pathlib.Path(self.folder.name, name)
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return str(path)

    def test_two_layouts(self):
        found = summary(self.write("a.json", layout(tp=4)),
                        self.write("b.json", layout(dp=2, tp=2)))
        self.assertEqual(found["bytes_total"], 4 * 64 * 32 * 4)
        self.assertEqual(found["changed"], "tp 4 -> 2, dp 1 -> 2")

    def check_refused(self, before, after, *parts):
        done = plan(self.write("a.json", before), self.write("b.json", after))
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        for part in parts:
            self.assertIn(part, done.stderr)

    def test_bad_layouts(self):
        good = layout(tp=2)
        self.check_refused(good, "{", "b.json", "no JSON")
        self.check_refused(good, {**good, "mehs": 1}, "b.json", "mehs")
        self.check_refused(good, layout(tp=5), "b.json", "'v'", "divided evenly by 5")
        self.check_refused(good, {**good, "rules": []}, "'v'", "no rule")
        twice = {**good, "rules": good["rules"] * 2}
        self.check_refused(good, twice, "'v'", "rules[0]", "rules[1]")
        other = {**good, "tensors": [{"name": "v", "dtype": "bf16", "shape": [64, 32]}]}
        self.check_refused(good, other, "'v' is f32", "'w' is in the old layout alone")
        hosts = {**good, "mesh": {**good["mesh"], "ranks_per_host": 1}}
        self.check_refused(good, hosts, "rank 1", "host")

    def test_bad_options(self):
        for words, part in ((("--model", "gpt"), "gpt3-175b"),
                            (("a.json",), "two layouts"),
                            (("--model", "gpt-tiny", "--from", "tp=2", "--to", "tp=2", "--lost",
                              "x"), "--lost"),
                            (("/nowhere/a.json", "/nowhere/b.json"), "No such file")):
            done = plan(*words)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(part, done.stderr)

    def test_help(self):
        done = plan("--help")
        self.assertEqual(done.returncode, 0)
        for word in ("--model", "--remap", "--lost", "bytes_lower_bound", "Exit code"):
            self.assertIn(word, done.stdout)


if __name__ == "__main__":
    unittest.main()
