#!/usr/bin/env python3
"""Workers that read samples ahead while others come, go and die: guesses become wrong, and every
commit still agrees with a serial replay, in which each sample of an epoch is in one step."""

import os
import pathlib
import signal
import unittest

import elastic_job

PLIANT = str(pathlib.Path(os.environ["PLIANT_BUILD_DIR"]) / "pliant")


class ReadingAhead(unittest.TestCase):
    def check(self, *worker_options):
        job = elastic_job.Job(PLIANT, 3, ["--min", "1", "--max", "4", "--restart"],
                              ["--read-ahead", "3", *worker_options])
        self.addCleanup(job.clean_up)
        job.await_step(20, 3)
        job.resize(4)
        job.await_step(job.step() + 10, 4)
        for _ in range(3):
            os.kill(job.by_last_step()[-1], signal.SIGKILL)
            job.await_step(job.step() + 10, 4)  # it is replaced
        job.resize(2)
        job.await_step(job.step() + 10, 2)
        job.end()
        self.assertEqual(job.judge(), "", job.text())
        self.assertNotIn("chaos-worker:", job.text())

    def test_loss_by_later_steps(self):
        self.check("--batch", "50")

    def test_constant_batch(self):
        self.check("--batch", "50", "--constant-batch")


if __name__ == "__main__":
    unittest.main()
