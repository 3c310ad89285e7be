#!/usr/bin/env python3
"""Monitors and policies in jobs of real processes: every member has the same signals bit by bit and
decides alike, whoever joins or dies."""

import os
import signal
import unittest

import adaptation_job
from elastic_job import alive

SIGMA = 2
NOISE_SCALE = SIGMA * SIGMA  # of the worker's quadratic
# Of one sample: sum over 2000 parameters of (h sigma)^2 with h = 1, 2, 3, 1, ...
VARIANCE = sum((1 + j % 3) ** 2 for j in range(2000)) * SIGMA * SIGMA


class Adaptation(unittest.TestCase):
    def job(self, *arguments, **options):
        job = adaptation_job.Job(*arguments, **options)
        self.addCleanup(job.clean_up)
        return job

    def finish(self, job):
        """The agreed history of a job that ends by itself."""
        self.assertEqual(job.end(None), 0, job.text())
        return job.by_step()

    def kill_one(self, job, which=-1):
        pids = job.by_pid()
        pid = pids[which % len(pids)]  # a newcomer may not have written its first line yet
        os.kill(pid, signal.SIGKILL)
        job.await_that(lambda: not alive(pid))


class Noise(Adaptation):
    def test_is_known_to_all_alike_across_resizes_and_a_kill(self):
        """Two members grow to four by a schedule, lose one, and go on."""
        job = self.job(2, ["--max", "4"],
                       ["--steps", 240, "--policy", "size_schedule:4@60", "--sigma", SIGMA,
                        "--sample-seconds", 0.0001])
        job.await_step(120, members=4)
        self.kill_one(job)
        history = self.finish(job)
        self.assertEqual({line["members"] for line in history}, {2, 3, 4})
        self.assertEqual(sum(line["lost"] for line in history), 1)
        # Norms of every step count; a few steps do not make a mean yet.
        for line in history[40:]:
            self.assertAlmostEqual(line["noise"] / NOISE_SCALE, 1, delta=0.05)
            self.assertAlmostEqual(line["variance"] / VARIANCE, 1, delta=0.05)
        # What a policy remembers came with the state: it was asked after every step, and before the
        # training once.
        self.assertEqual([line["counted"] for line in history],
                         [line["step"] for line in history])
        self.assertEqual({line["trainings"] for line in history}, {1})
        self.assertEqual(history[-1]["rate"], 1 / 5)
        said = job.decisions()
        self.assertEqual(len(said), len(set(said)), said)
        self.assertEqual(len([line for line in said if "members 2 -> 4" in line]), 1, said)
        self.assertEqual(len([line for line in said if "counts_steps: learning rate" in line]), 4)
        self.assertEqual(len(said), history[-1]["decisions"])
        self.assertGreater(history[-1]["change"], 0)

    def test_is_unknown_where_one_member_is_alone(self):
        job = self.job(1, [], ["--steps", 20])
        self.assertEqual({line["noise"] for line in self.finish(job)}, {-1})


class Decisions(Adaptation):
    def test_a_straggler_is_named(self):
        job = self.job(3, [], ["--steps", 25, "--slow-slot", 1, "--slow-seconds", 0.05])
        history = self.finish(job)
        self.assertEqual(history[0]["straggler"], -1)
        self.assertEqual(history[-1]["straggler"], 1)

    def test_a_size_beyond_the_limits_is_clipped(self):
        job = self.job(2, ["--max", "3"], ["--steps", 60, "--policy", "size_schedule:7@10",
                                           "--sample-seconds", 0.0002])
        job.await_step(11, members=3)
        self.finish(job)
        self.assertIn("policy size_schedule wants 7 members, and the job takes 1 to 3: 3 it is",
                      job.text())
        self.assertIn("members 2 -> 3", job.text())

    def test_switches_of_the_topology_survive_losses(self):
        """Members die again and again in a job that switches every second step, and newcomers find
        their way into the present topology."""
        # So many that it outlasts five replacements where every member has a core to itself, too.
        job = self.job(4, ["--max", "4", "--restart"],
                       ["--steps", 1200, "--switch-every", 2, "--sample-seconds", 0.0001])
        for step in (40, 80, 120, 160, 200):
            job.await_step(step, members=4)
            self.kill_one(job, which=step // 40 % 4)
        history = self.finish(job)
        topologies = {line["topology"] for line in history}
        self.assertEqual(topologies, {"auto", "ring", "star", "binary_tree"})
        self.assertEqual(sum(line["lost"] for line in history), 5)
        self.assertEqual({line["trainings"] for line in history}, {1})


if __name__ == "__main__":
    unittest.main(verbosity=2)
