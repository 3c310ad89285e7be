#!/usr/bin/env python3
"""ElasticTrainer: one thing at a time that is not as usual, and the program of its page."""

import math
import re
import subprocess
import unittest

from train_job import BUILD, PATIENCE_S, PROGRAM, SOURCE, environment

WORKER = str(BUILD / "tests" / "train" / "trainer_worker")
REPORT = re.compile(r"^applied (\d+), skipped (\d+), loss ([-\d.]+), sum ([-\d.]+)$", re.MULTILINE)


class Cases(unittest.TestCase):
    """trainer_worker.cc: one thing at a time that is not as usual."""

    def run_case(self, name, ranks=2):
        return subprocess.run(
            [PROGRAM, "run", "--no-prefix", "-n", str(ranks), "--", WORKER, name], text=True,
            capture_output=True, check=False, timeout=PATIENCE_S, env=environment())

    def good(self, name, ranks=2):
        """What each rank reports: (applied, skipped, loss, sum)."""
        done = self.run_case(name, ranks)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = REPORT.findall(done.stdout)
        self.assertEqual(len(rows), ranks, done.stdout)
        return [tuple(map(float, row)) for row in rows]

    def bad(self, name, said):
        done = self.run_case(name)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, said)

    def same_on_all_ranks(self, name, ranks=2):
        rows = self.good(name, ranks)
        self.assertEqual(len(set(rows)), 1, rows)
        return rows[0]

    def test_backward_by_parts(self):
        whole, parts = self.same_on_all_ranks("plain"), self.same_on_all_ranks("parts")
        self.assertEqual(whole[:2], (24, 0))
        self.assertAlmostEqual(whole[2], parts[2], delta=1e-11)
        self.assertAlmostEqual(whole[3], parts[3], delta=1e-11)

    def test_more_members_than_samples(self):
        whole, spread = self.same_on_all_ranks("few", 1), self.same_on_all_ranks("few", 3)
        self.assertAlmostEqual(whole[3], spread[3], delta=1e-11)

    def test_no_gradient_on_one_rank(self):
        self.assertEqual(self.same_on_all_ranks("unused")[0], 24)

    def test_running_means_are_kept_equal(self):
        self.assertEqual(self.same_on_all_ranks("normalised")[0], 24)

    def test_frozen_parameters(self):
        self.assertNotEqual(self.same_on_all_ranks("frozen")[3], self.good("plain")[0][3])

    def test_nonfinite_gradients(self):
        self.bad("nan", "step 3: the gradient of 'first.weight' on rank 1 is not finite; nothing "
                        "was applied")
        applied, skipped, _, total = self.same_on_all_ranks("skip")
        self.assertEqual((applied, skipped), (23, 1))
        self.assertTrue(math.isfinite(total))

    def test_forgotten_samples(self):
        self.bad("forgets", "step 1: backward\\(\\) was given 0 of 6 samples")

    def test_other_ways_of_synchronisation(self):
        for name in ("model_averaging", "pair_averaging"):
            with self.subTest(way=name):
                rows = self.good(name, 3)
                self.assertEqual([row[0] for row in rows], [24, 24, 24])
                # Models differ, but not by much; the loss is that of all.
                self.assertEqual(len({row[2] for row in rows}), 1)
                self.assertGreater(len({row[3] for row in rows}), 1)


class Docs(unittest.TestCase):
    def test_program_of_the_page(self):
        page = (SOURCE / "docs" / "CPP_TRAINING.md").read_text(encoding="utf-8")
        program_text = re.findall(r"^```cpp\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0]
        worker = (SOURCE / "tests" / "train" / "docs_worker.cc").read_text(encoding="utf-8")
        self.assertEqual(program_text, worker)
        done = subprocess.run(
            [PROGRAM, "run", "-n", "2", "--", str(BUILD / "tests" / "train" / "docs_worker")],
            capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=environment())
        self.assertEqual(done.returncode, 0, done.stderr)
        losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+), 2 workers", done.stdout)]
        self.assertEqual(len(losses), 128)
        self.assertLess(losses[-1], losses[0] / 10)


if __name__ == "__main__":
    unittest.main()
