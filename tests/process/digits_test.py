#!/usr/bin/env python3
"""examples/digits.cc: alone and with workers it learns, and all workers end up with one network.

The programs are those of PLIANT_PROGRAM and PLIANT_DIGITS, or of the build folder PLIANT_BUILD_DIR.
"""

import os
import re
import subprocess
import unittest

BUILD = os.environ.get("PLIANT_BUILD_DIR", "build/release")
PROGRAM = os.environ.get("PLIANT_PROGRAM") or os.path.join(BUILD, "pliant")
DIGITS = os.environ.get("PLIANT_DIGITS") or os.path.join(BUILD, "examples", "digits")
DEADLINE_S = 240
EPOCH = re.compile(r"^ *(\d+) +([0-9.]+) +([0-9.]+) % ", re.MULTILINE)


def run(*words):
    return subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S,
                          stdin=subprocess.DEVNULL)


def digits(workers, *words):
    launcher = [PROGRAM, "run", "--no-prefix", "-n", str(workers), "--"] if workers > 0 else []
    return run(*launcher, DIGITS, *words)


class Digits(unittest.TestCase):
    def train(self, workers, *words):
        done = digits(workers, *words)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("replicas identical   yes", done.stdout)
        return done.stdout, [(float(loss), float(accuracy))
                             for _, loss, accuracy in EPOCH.findall(done.stdout)]

    def test_workers_learn_what_one_learns(self):
        alone_text, alone = self.train(0, "--epochs", "3")
        shared_text, shared = self.train(3, "--epochs", "3")
        self.assertEqual((len(alone), len(shared)), (3, 3))
        self.assertIn("workers              1\n", alone_text)
        self.assertIn("workers              3\n", shared_text)
        self.assertGreater(alone[-1][1], 85)
        self.assertGreater(shared[-1][1], 85)
        # The same samples with the same weights: only the order of summation differs.
        self.assertAlmostEqual(alone[-1][0], shared[-1][0], delta=0.02)
        self.assertAlmostEqual(alone[-1][1], shared[-1][1], delta=1.5)

    def test_two_runs_are_one(self):
        first = self.train(3, "--epochs", "2", "--seed", "5")[1]
        self.assertEqual(first, self.train(3, "--epochs", "2", "--seed", "5")[1])

    def test_fewer_samples_than_workers(self):
        self.train(3, "--epochs", "1", "--batch", "2")

    def test_bad_input(self):
        for words in [["--epochs"], ["--epochs", "0"], ["--batch", "x"], ["--colour"]]:
            with self.subTest(words=words):
                done = digits(0, *words)
                self.assertEqual(done.returncode, 2)
                self.assertIn(words[0], done.stderr)
        done = digits(0, "--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("--epochs", done.stdout)


if __name__ == "__main__":
    unittest.main()
