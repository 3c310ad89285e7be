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

from launched import PROGRAM, SANITIZED, environment

BUILD = pathlib.Path(os.environ.get("PLIANT_BUILD_DIR", "build/release")).absolute()
WORKER = os.environ.get("PLIANT_RESHAPE_WORKER", str(BUILD / "tests/process/reshape_worker"))
PATIENCE_S = 600
DEATHS = 6
LITTLE = str(192 << 10)  # bytes; a change of the small model has many batches then
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


def large_layouts(folder):
    """Sixteen megabytes a member, in tensors that are cut into rows, into columns, into flat
    ranges, and as a pipeline has them."""
    tensors = [{"name": f"layer.{i}", "dtype": "f32", "shape": [256, 1024]} for i in range(64)]
    documents = [{"shard": [{"dim": 0, "axes": ["x"]}]}, {"shard": [{"dim": 1, "axes": ["x"]}]},
                 {"flat": {"group": "f", "axes": ["x"]}}, {"stage": "layer"}]
    paths = []
    for number, rule in enumerate(documents):
        path = os.path.join(folder, f"{number}.json")
        pathlib.Path(path).write_text(json.dumps(
            {"format": "pliant.layout/1", "mesh": {"axes": [{"name": "x", "size": 4}]},
             "pipeline": {"axis": "x", "layers": 64}, "tensors": tensors,
             "rules": [{"match": "layer.{layer}", **rule}]}))
        paths.append(path)
    return paths


def redundant_layouts(folder):
    """Of each tensor one of three or four members has nothing, and two have all."""
    tensors = [{"name": f"layer.{i}", "dtype": "f32", "shape": [96, 128]} for i in range(40)]
    paths = []
    for members, shift in ((4, 0), (4, 1), (3, 0), (3, 1), (2, 0)):
        def holders(tensor, members=members, shift=shift):
            without = (tensor + shift) % members if members > 2 else None
            return [rank for rank in range(members) if rank != without]
        rules = [{"match": tensor["name"], "pieces": [
            {"ranks": holders(i), "begin": [0, 0], "end": tensor["shape"]}]}
                 for i, tensor in enumerate(tensors)]
        path = os.path.join(folder, f"{members}.{shift}.json")
        pathlib.Path(path).write_text(json.dumps(
            {"format": "pliant.layout/1", "mesh": {"axes": [{"name": "x", "size": members}]},
             "tensors": tensors, "rules": rules}))
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

    def extra_memory(self, *words):
        """What the kernel counts of each member, as parts of what it gets: in shared memory,
        besides the larger of its two layouts, and in its own."""
        lines = self.run_workers([], "memory", *words).splitlines()
        reports = [json.loads(line) for line in lines]
        self.assertEqual(len(reports), 4)
        return [max(report[kind] / report["target"] for report in reports)
                for kind in ("extra", "besides")]

    @unittest.skipIf(SANITIZED, "a sanitizer's own memory is several times the program's")
    def test_a_tenth_of_memory_is_a_tenth(self):
        with tempfile.TemporaryDirectory() as folder:
            walk = all_pairs(large_layouts(folder))
            extra, besides = self.extra_memory("--percent", "10", *walk)
            self.assertLessEqual(extra, 0.10)
            self.assertGreater(extra, 0.02, "the count counts nothing")
            self.assertLessEqual(besides, 0.02)
            self.assertGreater(self.extra_memory(*walk[:2])[0], 0.5)

    def test_what_stays_is_not_copied(self):
        moved = self.run_sequence(["dp=2,tp=2", "dp=2,tp=2", "dp=2,tp=2"])
        self.assertGreater(moved.pop("kept"), 0)
        self.assertEqual(set(moved.values()), {0})

    def test_wrong_calls_fail_on_all_and_change_nothing(self):
        self.run_workers([], "wrong")


class Deaths(unittest.TestCase):
    """Whenever four members are there, or fewer that have copies enough, one kills itself at some
    instant of a change. The workers
    look at every element after every change, failed or not, and end with an error if one is
    wrong."""

    def run_deaths(self, options, words, event="dying"):
        """Until so many have died, and something has happened that is waited for."""
        with tempfile.TemporaryDirectory(prefix="pliant-reshape-") as folder:
            records = os.path.join(folder, "records")
            os.mkdir(records)
            job = subprocess.Popen(
                [PROGRAM, "run", "-n", "4", "--no-prefix", "--restart", *options, "--", WORKER,
                 "faults", records, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                text=True, env=environment(XDG_RUNTIME_DIR=folder, HOME=folder))
            said = []
            reader = threading.Thread(target=lambda: said.extend(job.stderr))
            reader.start()
            deadline = time.monotonic() + PATIENCE_S * max(1, DEATHS / 50)

            def wait_a_little():
                # A worker that has found a fault is started again; what it said is not lost.
                self.assertNotIn("reshape_worker:", "".join(said))
                self.assertIsNone(job.poll(), "".join(said))
                self.assertLess(time.monotonic(), deadline, "".join(said))
                time.sleep(0.05)

            try:
                while self.count(records, "dying") < DEATHS or not self.count(records, event):
                    wait_a_little()
                last = max(record["step"] for record in self.read(records))
                while max(record["step"] for record in self.read(records)) < last + 3:
                    wait_a_little()
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

    def test_with_little_memory_replicas_bring_everything_back(self):
        """Somebody dies when some tensors are in the new layout alone and the others in the old:
        the next change takes each from where it is."""
        for options in ([], TWO_HOSTS[:1] + ["a:4@127.0.0.1,b:4@127.0.0.1"] + TWO_HOSTS[2:]):
            records = self.run_deaths(options, ["--cap", LITTLE, "dp=2,tp=2", "dp=4", "dp=2,pp=2",
                                                "dp=3", "dp=2"], "joined")
            self.assertEqual([r for r in records if r["event"] == "gone"], [])
            self.assertTrue([r for r in records if r["event"] == "split"])

    def test_with_little_memory_a_death_in_a_recovery_loses_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            records = self.run_deaths([], ["--cap", LITTLE, *redundant_layouts(folder)], "joined")
        self.assertEqual([r for r in records if r["event"] == "gone"], [])

    def test_with_little_memory_what_dies_with_its_last_replica_is_named(self):
        records = self.run_deaths([], ["--cap", LITTLE, "--snapshot", "tp=4", "pp=4", "dp=3",
                                       "dp=2"], "split")
        gone = [r for r in records if r["event"] == "gone"]
        self.assertTrue(gone)
        self.check_survivors(records, {"gone"})
        self.assertTrue(all(r["pieces"] for r in gone))
        self.assertTrue([r for r in records if r["event"] == "restored"])

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
