#!/usr/bin/env python3
"""ElasticTrainer: whoever joins, leaves or dies, the training is that of one process."""

import unittest

from train_job import TrainJob, largest_difference, program, train_alone

STEPS = 200
DIGITS = [program("digits"), "--steps", str(STEPS), "--samples", "1000", "--hidden", "32", "--lr"]


class Trainer(unittest.TestCase):
    def train_through_changes(self, *words):
        """1, 2, 4 and 3 workers, and two that are killed."""
        command = [*DIGITS, *words]
        with TrainJob(["-n", "1", "--min", "1", "--max", "4"], command) as job:
            job.await_members(1)
            for size in (2, 4, 3):
                job.ask("resize", str(size))
                job.await_members(size)
            for left in (2, 1):
                job.kill(1)
                job.await_members(left)
            job.hurry()
            rows, model = job.end()
        alone, alone_model = train_alone(command)
        self.assertEqual(sorted(rows), list(range(1, STEPS + 1)))
        self.assertEqual({row["members"] for row in rows.values()}, {1, 2, 3, 4})
        # No step is short of the samples of those that were killed in it.
        self.assertEqual([row["samples"] for row in rows.values()],
                         [row["samples"] for row in alone.values()])
        return (max(abs(rows[step]["loss"] / alone[step]["loss"] - 1) for step in rows),
                largest_difference(alone_model, model), rows)

    def test_float64_is_as_alone(self):
        for optimizer, rate in (("sgd", "0.01"), ("adamw", "0.001")):
            with self.subTest(optimizer=optimizer):
                losses, models, rows = self.train_through_changes(
                    rate, "--dtype", "float64", "--optimizer", optimizer)
                self.assertLess(losses, 1e-12)
                self.assertLess(models, 1e-12)
                self.assertLess(rows[STEPS]["loss"], rows[1]["loss"] / 2)

    def test_float32_is_as_alone(self):
        losses, models, _ = self.train_through_changes("0.01", "--dtype", "float32")
        self.assertLess(losses, 1e-5)
        self.assertLess(models, 1e-5)


    def test_policy_decides_on_the_size(self):
        command = [*DIGITS, "0.01", "--policy", "size_schedule:1@0,2@3"]
        with TrainJob(["-n", "1", "--min", "1", "--max", "2"], command) as job:
            job.await_members(2)
            job.hurry()
            rows, _ = job.end()
            self.assertIn("size_schedule", job.text())
        self.assertEqual(rows[3]["members"], 1)
        self.assertEqual(sorted(rows), list(range(1, STEPS + 1)))


if __name__ == "__main__":
    unittest.main()
