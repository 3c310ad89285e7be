#!/usr/bin/env python3
"""Changes of the layout of a state, by real processes: every pair of many layouts, bit for bit, in
shared memory, over sockets and both; and with a member that dies in the middle, again and again.

    reshape_test.py                    as a test
    reshape_test.py --deaths 500       with so many deaths of each kind
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from launched import PROGRAM, environment

BUILD = pathlib.Path(os.environ.get("PLIANT_BUILD_DIR", "build/release")).absolute()
WORKER = os.environ.get("PLIANT_RESHAPE_WORKER", str(BUILD / "tests/process/reshape_worker"))
PATIENCE_S = 600
DEATHS = 6
TWO_HOSTS = ["-H", "a:2@127.0.0.1,b:2@127.0.0.1", "--address", "127.0.0.1", "--launcher",
             "env AT={host}"]
LAYOUTS = ["dp=4", "tp=4", "pp=4", "dp=2,tp=2", "dp=2,pp=2,interleave=2", "tp=2,pp=2",
           "dp=4,zero=1", "dp=2,tp=2,zero=3", "dp=4,ep=4"]


def all_pairs(layouts):
    """A walk that makes every change between two of them, in both directions."""
    walk = []
    for i, first in enumerate(layouts[:-1]):
        for other in layouts[i + 1:]:
            walk += [first, other]
    return walk


def odd_layouts(folder):
    """Tensors and splits that no preset has: uneven, fused, padded, stated piece by piece, f8 and
    bool, empty and without dimensions, and a piece that needs several messages."""
    tensors = [{"name": "long", "dtype": "f32", "shape": [3, 701, 1111]},
               {"name": "fused", "dtype": "bf16", "shape": [5, 24, 7]},
               {"name": "mask", "dtype": "bool", "shape": [13, 3]},
               {"name": "tiny", "dtype": "f8_e4m3", "shape": [9]},
               {"name": "none", "dtype": "f32", "shape": [0, 4]},
               {"name": "step", "dtype": "i64", "shape": []}]
    blocks = [{"name": "q", "size": 16}, {"name": "k", "size": 4}, {"name": "v", "size": 4}]
    whole = {"match": ["none", "step"], "replicated": True}
    documents = [
        [{"match": "long", "shard": [{"dim": 1, "axes": ["x"], "split": "balanced"}]},
         {"match": "fused", "shard": [{"dim": 1, "axes": ["x"], "blocks": blocks}]},
         {"match": "mask", "shard": [{"dim": 0, "axes": ["x"], "split": "ceil"}]},
         {"match": "tiny", "shard": [{"dim": 0, "axes": ["x"], "padded": 12}]}],
        [{"match": "long", "shard": [{"dim": 2, "axes": ["x"], "split": [1, 0, 1110, 0]}]},
         {"match": ["fused", "mask", "tiny"], "replicated": True}],
        [{"match": "long", "flat": {"group": "f", "axes": ["x"], "align": 64, "multiple": 3}},
         {"match": "fused", "flat": {"group": "h", "axes": ["x"]}},
         {"match": ["mask", "tiny"], "shard": [{"dim": 0, "axes": ["x"], "split": "balanced"}]}],
        [{"match": "long", "shard": [{"dim": 0, "axes": ["x"], "split": [0, 2, 0, 1]}]},
         {"match": "fused", "pieces": [
             {"ranks": [2], "begin": [0, 0, 0], "end": [5, 24, 3]},
             {"ranks": [0, 3], "begin": [0, 0, 3], "end": [5, 24, 7]}]},
         {"match": ["mask", "tiny"], "replicated": True}]]
    paths = []
    for number, rules in enumerate(documents):
        path = os.path.join(folder, f"{number}.json")
        pathlib.Path(path).write_text(json.dumps(
            {"format": "pliant.layout/1", "mesh": {"axes": [{"name": "x", "size": 4}]},
             "tensors": tensors, "rules": rules + [whole]}))
        paths.append(path)
    return paths


class Sequences(unittest.TestCase):
    def run_workers(self, options, *words):
        done = subprocess.run(
            [PROGRAM, "run", "-n", "4", "--no-prefix", *options, "--", WORKER, *words],
            capture_output=True, text=True, timeout=PATIENCE_S, env=environment(), check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def run_sequence(self, layouts, *options):
        out = self.run_workers(options, "sequence", *layouts)
        reports = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(sorted(report["rank"] for report in reports), [0, 1, 2, 3])
        return {key: sum(report[key] for report in reports)
                for key in ("kept", "in_place", "inside", "messages")}

    def test_every_pair_in_shared_memory(self):
        moved = self.run_sequence(all_pairs(LAYOUTS))
        self.assertGreater(moved["inside"], 0)
        self.assertEqual(moved["messages"], 0)

    def test_over_sockets_alone(self):
        moved = self.run_sequence(all_pairs(LAYOUTS[3:]), "--transport", "tcp")
        self.assertGreater(moved["messages"], 0)
        self.assertEqual(moved["inside"], 0)

    def test_over_two_hosts(self):
        moved = self.run_sequence(all_pairs(LAYOUTS[3:]), *TWO_HOSTS)
        self.assertGreater(moved["messages"], 0)
        self.assertGreater(moved["inside"], 0)

    def test_odd_layouts(self):
        with tempfile.TemporaryDirectory() as folder:
            walk = all_pairs(odd_layouts(folder))
            self.run_sequence(walk)
            self.run_sequence(walk, *TWO_HOSTS)

    def test_with_little_memory(self):
        walk = all_pairs(LAYOUTS[1:6])
        cap = 512 << 10
        for options in ([], TWO_HOSTS):
            self.assertLessEqual(
                max(json.loads(line)["peak"] for line in self.run_workers(
                    options, "sequence", "--cap", str(cap), *walk).splitlines()), cap)
        freely = self.run_workers([], "sequence", *walk)
        self.assertGreater(json.loads(freely.splitlines()[0])["peak"], 4 * cap)

    def test_what_stays_is_not_copied(self):
        moved = self.run_sequence(["dp=2,tp=2", "dp=2,tp=2", "dp=2,tp=2"])
        self.assertGreater(moved.pop("kept"), 0)
        self.assertEqual(set(moved.values()), {0})

    def test_wrong_calls_fail_on_all_and_change_nothing(self):
        self.run_workers([], "wrong")


class Deaths(unittest.TestCase):
    """Whenever four members are there, one kills itself at some instant of a change. The workers
    look at every element after every change, failed or not, and end with an error if one is
    wrong."""

    def run_deaths(self, options, layouts):
        with tempfile.TemporaryDirectory(prefix="pliant-reshape-") as folder:
            records = os.path.join(folder, "records")
            os.mkdir(records)
            job = subprocess.Popen(
                [PROGRAM, "run", "-n", "4", "--no-prefix", "--restart", *options, "--", WORKER,
                 "faults", records, *layouts], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                text=True, env=environment(XDG_RUNTIME_DIR=folder, HOME=folder))
            said = []
            reader = threading.Thread(target=lambda: said.extend(job.stderr))
            reader.start()
            deadline = time.monotonic() + PATIENCE_S * max(1, DEATHS / 50)
            try:
                while self.count(records, "dying") < DEATHS:
                    self.assertIsNone(job.poll(), "".join(said))
                    self.assertLess(time.monotonic(), deadline, "".join(said))
                    time.sleep(0.05)
                last = max(record["step"] for record in self.read(records))
                while max(record["step"] for record in self.read(records)) < last + 3:
                    self.assertIsNone(job.poll(), "".join(said))
                    self.assertLess(time.monotonic(), deadline, "".join(said))
                    time.sleep(0.05)
            finally:
                job.send_signal(signal.SIGINT)
                job.wait(PATIENCE_S)
                reader.join()
                job.stderr.close()
            self.assertNotIn("reshape_worker:", "".join(said))
            return self.read(records)

    def read(self, folder):
        found = []
        for path in pathlib.Path(folder).iterdir():
            lines = path.read_text().split("\n")[:-1]
            found += [{**json.loads(line), "pid": int(path.name)} for line in lines]
        return found

    def count(self, folder, event):
        return sum(record["event"] == event for record in self.read(folder))

    def check_survivors(self, records, of_interest):
        """After each death those who are left go on together: they report the same."""
        by_step = {}
        for record in records:
            if record["event"] in of_interest:
                outcome = (record["event"], *record.get("pieces", []))
                by_step.setdefault((record["epoch"], record["step"]), set()).add(outcome)
        for (epoch, step), outcomes in by_step.items():
            self.assertEqual(len(outcomes), 1, f"epoch {epoch}, step {step}")
        self.assertTrue(by_step)

    def test_replicas_bring_everything_back(self):
        for options in ([], TWO_HOSTS[:1] + ["a:4@127.0.0.1,b:4@127.0.0.1"] + TWO_HOSTS[2:]):
            records = self.run_deaths(options, ["dp=2,tp=2", "dp=4", "dp=2,pp=2", "dp=3", "dp=2"])
            self.assertEqual([r for r in records if r["event"] == "gone"], [])
            # All others have failed together in it, or come through.
            survived = [r for r in records if r["event"] == "reshaped" and r["members"] == 3]
            self.assertTrue(survived)
            self.assertTrue([r for r in records if r["event"] == "failed"])

    def test_what_dies_with_its_last_replica_is_named(self):
        records = self.run_deaths([], ["tp=4", "pp=4", "dp=4,zero=1", "dp=3", "dp=2"])
        gone = [r for r in records if r["event"] == "gone"]
        self.assertTrue(gone)
        self.check_survivors(records, {"gone"})
        self.assertTrue(all(r["pieces"] for r in gone))


if __name__ == "__main__":
    if "--deaths" in sys.argv:
        place = sys.argv.index("--deaths")
        DEATHS = int(sys.argv[place + 1])
        del sys.argv[place:place + 2]
        PATIENCE_S = 3600
    unittest.main(verbosity=2)
