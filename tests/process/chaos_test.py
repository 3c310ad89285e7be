#!/usr/bin/env python3
"""`pliant chaos` for a few seconds: it finds nothing, says so, and leaves nothing behind."""

import glob
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from elastic_job import PATIENCE_S, alive

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import namespaces  # noqa: E402

BUILD = pathlib.Path(os.environ["PLIANT_BUILD_DIR"]).absolute()
PLIANT = str(BUILD / "pliant")
SHORT = ["-n", "4", "--minutes", "0.1", "--every-min", "0.2", "--every-max", "0.4"]


def namespaces_of(pid):
    return glob.glob(f"/var/run/netns/pliant{pid}*")


def descendants(pid):
    found = []
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return found
    for child in map(int, children):
        found += [child, *descendants(child)]
    return found


class Chaos(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="pliant-chaos-test-")
        self.addCleanup(self.folder.cleanup)

    def start(self, *arguments):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PLIANT_")}
        directory = self.folder.name
        chaos = subprocess.Popen(
            [PLIANT, "chaos", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**kept, "XDG_RUNTIME_DIR": directory, "HOME": directory,
                            "TMPDIR": directory})
        self.addCleanup(lambda: chaos.poll() is None and chaos.kill())
        return chaos

    def run_chaos(self, *arguments):
        chaos = self.start(*SHORT, "--json", *arguments)
        out, error = chaos.communicate(timeout=PATIENCE_S)
        self.assertEqual(chaos.returncode, 0, out + error)
        found = json.loads(out)
        self.assertEqual((found["divergences"], found["hangs"]), (0, 0))
        self.assertGreater(found["commits"], 0)
        self.assertEqual(os.listdir(self.folder.name), ["pliant"])
        self.assertEqual(namespaces_of(chaos.pid), [])
        return found["faults"]

    def test_one_host(self):
        self.assertTrue(self.run_chaos("--faults", "kill,stop,resize,coordinator"))

    def test_agents_are_killed(self):
        self.assertIn("agent", self.run_chaos("--hosts", "2", "--faults", "agent"))

    @unittest.skipUnless(namespaces.usable(), "network namespaces need root and iproute2")
    def test_partitions(self):
        self.assertIn("partition", self.run_chaos("--hosts", "2", "--partitions", "--heartbeat",
                                                  "0.3", "--faults", "partition"))

    def interrupt(self, *arguments):
        chaos = self.start("-n", "4", "--minutes", "10", *arguments)
        deadline = time.monotonic() + PATIENCE_S
        while not any(pathlib.Path(self.folder.name).glob("pliant-chaos-*/*")):
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(chaos.poll())
            time.sleep(0.01)
        below = descendants(chaos.pid)
        self.assertGreater(len(below), 4)
        chaos.send_signal(signal.SIGTERM)
        out, error = chaos.communicate(timeout=PATIENCE_S)
        self.assertNotEqual(chaos.returncode, 0, out + error)
        while any(map(alive, below)) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual([pid for pid in below if alive(pid)], [])
        self.assertEqual(namespaces_of(chaos.pid), [])
        self.assertEqual(os.listdir(self.folder.name), ["pliant"])

    def test_an_interrupt_leaves_nothing(self):
        self.interrupt("--hosts", "2")

    @unittest.skipUnless(namespaces.usable(), "network namespaces need root and iproute2")
    def test_an_interrupt_leaves_no_namespace(self):
        self.interrupt("--hosts", "2", "--partitions")

    def test_contradictions_are_explained(self):
        for text, arguments in (
                ("agents are killed with --hosts", ["--faults", "agent"]),
                ("partitions need --partitions", ["--faults", "partition", "--hosts", "2"]),
                ("more hosts than members", ["-n", "2", "--hosts", "3"]),
                ("'fire' is no fault", ["--faults", "kill,fire"])):
            chaos = self.start(*arguments)
            _, error = chaos.communicate(timeout=PATIENCE_S)
            self.assertNotEqual(chaos.returncode, 0)
            self.assertIn(text, error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
