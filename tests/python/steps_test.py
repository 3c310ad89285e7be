"""Elastic steps from Python: workers are killed, join and leave while each sample is counted in
exactly one committed step."""

import array
import os
import pathlib
import signal
import sys
import unittest

from python_job import VARIABLES, PythonJob, environment, run

SAMPLES, BATCH, EPOCHS = 600, 16, 4


class Steps(unittest.TestCase):
    def check(self, job):
        """All have ended well, committed the same states, and counted each sample once an epoch."""
        for end in job.ends(self):
            self.assertEqual(end, array.array("d", [EPOCHS] * SAMPLES).tobytes())
        samples = {commit["step"]: commit["samples"]
                   for commits in job.records().values() for commit in commits}
        self.assertEqual(sum(samples.values()), SAMPLES * EPOCHS)
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

    def test_batch_is_set_while_workers_come_and_go(self):
        with PythonJob("steps_worker.py", 2, "--min", "1", "--max", "3", "--restart",
                       arguments=["vary"]) as job:
            job.step_until(lambda: job.step() >= 9)
            job.resize(3)
            job.step_until_members(3)
            os.kill(job.by_last_step()[0], signal.SIGKILL)
            job.step_until_members(2)
            job.step_until_members(3)
            samples = self.check(job)
        self.assertIn(BATCH + 2, samples.values())

    def test_other_samplers_are_refused(self):
        cases = [("samples=99", "its dataset has 99 samples, the others' 100"),
                 ("seed=5", "its sampler has seed 5, the others' 0"),
                 ("epochs=3", "it would end after 3 epochs, the others end after 1 epochs"),
                 ("shuffle=False", "the others shuffle their samples, it does not"),
                 ("global_batch=0, batch_per_member=4", "it has a batch per member"),
                 ("keep_global_batch=True", "it keeps the global batch constant"),
                 ("global_batch=7", None)]
        for other, message in cases:
            program = ("import pliant; session = pliant.Session()\n"
                       "options = dict(samples=100, global_batch=10)\n"
                       f"if session.rank: options.update({other})\n"
                       "session.use_sampler(**options)\n"
                       "steps = [step.commit() for step in session.steps()]\n"
                       "print(len(steps), 'steps')")
            done = run("run", "-n", "2", "--min", "1", "--", sys.executable, "-c", program,
                       env=environment(**VARIABLES))
            text = done.stdout + done.stderr
            with self.subTest(other=other):
                self.assertIn("10 steps", text)
                if message:
                    self.assertIn("this worker cannot join: " + message, text)
                else:
                    self.assertEqual(text.count("10 steps"), 2)

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
