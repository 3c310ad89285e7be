"""Elastic steps from Python: workers are killed, join and leave while each sample is counted in
exactly one committed step."""

import array
import os
import pathlib
import signal
import unittest

from python_job import PythonJob

SAMPLES, BATCH, EPOCHS = 600, 16, 4
STEPS = 1 << 40


class Steps(unittest.TestCase):
    def check(self, job):
        """All have ended well, committed the same states, and counted each sample once an epoch."""
        job.allow(STEPS)
        self.assertEqual(job.end(None), 0, job.text())
        self.assertNotIn("exited with code", job.text())
        states = {}
        samples = {}
        for commits in job.records().values():
            for commit in commits:
                states.setdefault(commit["step"], set()).add(commit["state"])
                samples[commit["step"]] = commit["samples"]
        self.assertEqual([step for step, found in states.items() if len(found) > 1], [])
        self.assertEqual(sum(samples.values()), SAMPLES * EPOCHS)
        ends = list(pathlib.Path(job.directory).glob("end-*"))
        self.assertTrue(ends)
        for end in ends:
            self.assertEqual(end.read_bytes(), array.array("d", [EPOCHS] * SAMPLES).tobytes())
        return samples

    def test_resize_and_kill(self):
        with PythonJob("steps_worker.py", 3, "--min", "1", "--max", "4", "--restart") as job:
            job.step_until(lambda: job.step() >= 5)
            job.resize(4)
            job.step_until_members(4)
            os.kill(job.by_last_step()[0], signal.SIGKILL)
            job.step_until_members(3)
            job.step_until_members(4)  # its replacement
            job.resize(2)
            job.step_until_members(2)
            self.check(job)

    def test_worker_proposes_a_size(self):
        with PythonJob("steps_worker.py", 2, "--max", "3", arguments=["propose"]) as job:
            job.step_until_members(3)
            self.check(job)

    def test_kept_batch(self):
        with PythonJob("steps_worker.py", 3, "--min", "1", arguments=["keep"]) as job:
            job.step_until(lambda: job.step() >= 20)  # one dies in step 5
            samples = self.check(job)
            self.assertTrue(list(pathlib.Path(job.directory).glob("more-*")))
        # Every step but the last of an epoch has its whole batch.
        self.assertEqual(sum(count != BATCH for count in samples.values()), EPOCHS)
        self.assertEqual(len(samples), EPOCHS * -(-SAMPLES // BATCH))


if __name__ == "__main__":
    unittest.main()
