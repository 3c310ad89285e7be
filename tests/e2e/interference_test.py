#!/usr/bin/env python3
"""Three emulated hosts: when a link is disturbed, the policy topology_by_interference leaves the
topology that suffers within ten steps, and comes back when the disturbance is over. Prints the
throughput before, during and after."""

import os
import pathlib
import statistics
import sys
import unittest

import namespaces

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "process"))

import adaptation_job  # noqa: E402

RATE = "400mbit"
SLOW_RATE = "80mbit"
SLOW_HOST = 1
# The disturbed host is the centre: everything crosses its link twice. Around another centre its own
# part does, once.
HOME = f"star@{SLOW_HOST}"
BYTES = 600_000
# Collectives that take twice as long are disturbed: less may be this machine's other work.
POLICY = "topology_by_interference:window=5,back_off=20,threshold=0.5"
STEPS = 1000
STEPS_UNTIL_SWITCH_MAX = 10


def throughput(lines):
    known = [line["throughput"] for line in lines if line["throughput"] > 0]
    return statistics.median(known) if known else 0


@unittest.skipUnless(namespaces.usable(), "network namespaces need root and iproute2")
class Interference(unittest.TestCase):
    def run_job(self, kind, run_options):
        with namespaces.Network(3, mark="pli") as net:
            for host in range(3):
                net.limit(host, RATE)
            options = [*net.run_options(1), "--strategy", HOME, *run_options]
            with adaptation_job.Job(3, options, [
                    "--steps", STEPS, "--bytes", BYTES, "--noise-every", 0, "--policy", POLICY],
                    inside=net.in_hub()) as job:
                job.await_that(lambda: (line := job.newest()) and line["step"] > 30
                               and line["topology"] == HOME)
                net.limit(SLOW_HOST, SLOW_RATE)
                limited = job.newest()["step"]
                left = job.await_that(lambda: self.first(job, limited, lambda t: t != HOME))
                job.await_step(left["step"] + 10)
                net.limit(SLOW_HOST, RATE)
                lifted = job.newest()["step"]
                back = job.await_that(lambda: self.first(job, lifted, lambda t: t == HOME))
                job.await_step(back["step"] + 10)
                job.end()
                history = job.by_step()
                said = job.decisions()
                measured = max(line["measured"] for made in job.commits().values() for line in made)
        print(f"a measurement of the links took {measured * 1e3:.0f} ms at most")
        self.report(kind, history, limited, left["step"], lifted, back["step"], said)
        self.assertLessEqual(left["step"] - limited, STEPS_UNTIL_SWITCH_MAX, said)

    @staticmethod
    def first(job, after, wanted):
        """The first commit after that step with such a topology."""
        lines = [line for made in job.commits().values() for line in made
                 if line["step"] > after and wanted(line["topology"])]
        return min(lines, key=lambda line: line["step"], default=None)

    @staticmethod
    def report(kind, history, limited, left, lifted, back, said):
        def between(first, last):
            return throughput([line for line in history if first < line["step"] <= last])
        print(f"{kind}: samples/s before {between(5, limited):.0f}, limited "
              f"{between(limited + 1, left):.0f}, switched after {left - limited:.0f} steps "
              f"{between(left + 1, lifted):.0f}, lifted and back after {back - lifted:.0f} steps "
              f"{between(back + 1, len(history)):.0f}")
        for line in said:
            print("  " + line)

    def test_fixed_size(self):
        self.run_job("fixed size", [])

    def test_elastic(self):
        self.run_job("elastic", ["--max", "3"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
