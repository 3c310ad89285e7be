#!/usr/bin/env python3
"""Three emulated hosts with two workers each: collectives are right over the network, and `auto`
follows a link that becomes slow."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import namespaces

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "process"))

import elastic_job  # noqa: E402

BUILD = pathlib.Path(os.environ["PLIANT_BUILD_DIR"])
PLIANT = str(BUILD / "pliant")
WORKER = str(next(BUILD.rglob("hosts_worker")))
BYTES = 4 << 20
PATIENCE_S = 300


@unittest.skipUnless(namespaces.usable(), "network namespaces need root and iproute2")
class Hosts(unittest.TestCase):
    def run_job(self, net, options, change=lambda choice: None):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        changed = os.path.join(folder.name, "changed")
        command = net.run_command(PLIANT, 2, options)
        command += ["--", WORKER, "--bytes", str(BYTES), "--changed", changed]
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        cut_off = threading.Timer(PATIENCE_S, job.kill)
        cut_off.start()
        said = {}
        for line in job.stdout:
            phase, _, text = line.partition(": ")
            said[phase] = text.strip()
            if phase == "before":
                change(said[phase])
                pathlib.Path(changed).touch()
        stderr = job.stderr.read()
        code = job.wait()
        cut_off.cancel()
        job.stdout.close()
        job.stderr.close()
        self.assertEqual(code, 0, stderr)
        return said

    def test_auto_follows_a_slow_link(self):
        slowed = []

        def change(choice):
            """Slows the host at the centre of the choice, if it has one: it must be left."""
            centre = re.match(r"hierarchical:star(?:@(\d))?:", choice)
            slowed.append(int(centre[1] or 0) if centre else 2)
            net.limit(slowed[0], "50mbit")

        with namespaces.Network(3) as net:
            said = self.run_job(net, [], change)
        print(said)
        for phase in ("before", "after"):
            self.assertIn("over 3 hosts, predicted", said[phase])
        # The slow host moves to the edge: its link then carries each byte once each way.
        self.assertNotEqual(said["before"].split(" ")[0], said["after"].split(" ")[0])
        self.assertRegex(said["after"], r"^hierarchical:(star|binary_tree|tree)")
        slow = slowed[0]
        self.assertRegex(said["after"], rf"slow link from host ({slow} to host|\d to host {slow})")

    def test_tcp_inside_hosts_too(self):
        with namespaces.Network(3) as net:
            self.run_job(net, ["--transport", "tcp"])

    def test_a_cut_between_two_hosts_that_reach_the_coordinator(self):
        """Only the two know of it. One is let go within two heartbeats and a little, not when the
        kernel gives up the connection."""
        with namespaces.Network(2) as net, elastic_job.Job(
                PLIANT, 4, [*net.run_options(2), "--min", "1", "--max", "4", "--heartbeat", "0.5s"],
                inside=net.in_hub()) as job:
            job.await_step(20, members=4)
            net.cut_between(0, 1)
            began = time.monotonic()
            job.await_that(lambda: any(
                record["members"] < 4 for record in elastic_job.last_records(job.folder).values()))
            print(f"cut and repaired in {time.monotonic() - began:.1f} s")
            self.assertLess(time.monotonic() - began, 15, "the connection's own silence is 20 s")
            job.await_steps(20)
            job.end()
            self.assertEqual(job.judge(), "")


if __name__ == "__main__":
    unittest.main(verbosity=2)
