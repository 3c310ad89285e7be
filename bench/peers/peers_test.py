#!/usr/bin/env python3
"""Tests of what turns batches into figures, cells and tables; nothing is timed here."""

import argparse
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import contenders  # noqa: E402
import goals  # noqa: E402
import measure  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402

MIB = 1 << 20


LIMITS = measure.Limits(steal=0.3, other=0.3)


NEAR, FAR = (30.0, 31.0), (170.0, 180.0)


def sample(seconds, steal=0.0, other=0.0, core_ns=NEAR):
    return measure.Sample(seconds=seconds, steal=steal, other=other, core_ns=core_ns)


class Figures(unittest.TestCase):
    def test_a_sample_is_a_batch_and_what_the_machine_did_meanwhile(self):
        lines = [{"bytes": 4, "calls": 10, "seconds": seconds, "stolen": 0.5, "core_ns": [30, 170]}
                 for seconds in (1.0, 2.0)]
        whole = measure.Run(lines, seconds=3.0, other=0.1, started_ns=0)
        found = measure.samples(whole, lambda line: line["bytes"])[4]
        self.assertEqual(found[1], measure.Sample(seconds=0.2, steal=0.25, other=0.1,
                                                  core_ns=(30, 170)))

    def test_disturbed_batches_are_dropped(self):
        found = measure.figure([sample(1), sample(9, steal=0.4), sample(8, other=0.4), sample(3)],
                               LIMITS)
        self.assertEqual((found.median, found.batches, found.dropped), (2, 2, 2))
        self.assertFalse(found.noisy)

    def test_the_least_bad_batch_stands_if_all_were_disturbed(self):
        found = measure.figure([sample(1, steal=0.9), sample(2, other=0.5)], LIMITS)
        self.assertEqual((found.median, found.dropped, found.noisy), (2, 2, True))

    def test_no_batches_no_figure(self):
        self.assertIsNone(measure.figure([], LIMITS))


class States(unittest.TestCase):
    def setUp(self):
        self.cores = measure.Cores([sample(1), sample(1, core_ns=FAR)])

    def test_of_a_batch(self):
        self.assertEqual(self.cores.state(sample(1)), measure.TOGETHER)
        self.assertEqual(self.cores.state(sample(1, core_ns=FAR)), measure.APART)
        self.assertIsNone(self.cores.state(sample(1, core_ns=(30.0, 170.0))))
        self.assertEqual(self.cores.state(sample(1, core_ns=())), measure.TOGETHER)

    def test_the_one_with_most_batches_of_everyone_is_compared(self):
        near, far = [sample(1)], [sample(1, core_ns=FAR)]
        self.assertEqual(self.cores.best_state([3 * near + far, 2 * far + near]), measure.TOGETHER)
        self.assertEqual(self.cores.best_state([3 * near + 2 * far, 2 * far]), measure.APART)
        self.assertIsNone(self.cores.best_state([near, far]))


class Groups(unittest.TestCase):
    def test_lines_of_all_processes_are_read(self):
        found = measure.run_group(lambda _: [["echo", '{"rank": 0}'], ["echo", '{"rank": 1}']])
        self.assertEqual(sorted(line["rank"] for line in found.lines), [0, 1])

    def test_a_failing_process_fails_the_group_and_ends_the_others(self):
        with self.assertRaisesRegex(measure.RunFailed, "exit code 3: wrong sum"):
            measure.run_group(lambda _: [["sleep", "100"],
                                         ["sh", "-c", "echo wrong sum >&2; exit 3"]])

    def test_a_group_has_a_deadline(self):
        with self.assertRaisesRegex(measure.RunFailed, "deadline"):
            measure.run_group(lambda _: [["sleep", "100"]], timeout=0.01)

    def test_a_program_that_does_not_exist_fails(self):
        with self.assertRaises(measure.RunFailed):
            measure.run_group(lambda _: [["/nonexistent/driver"]])

    def test_what_a_daemon_uses_is_its_group_s(self):
        burn = "import time\nwhile time.process_time() < 0.3: pass"
        before = measure._children_seconds()
        measure.run_group(lambda _: [["sh", "-c", '"$0" -c "$1" & exit 0', sys.executable, burn]])
        self.assertGreaterEqual(measure._children_seconds() - before, 0.3)


class Cells(unittest.TestCase):
    def setUp(self):
        options = argparse.Namespace(steal_max=0.3, other_max=0.3, goals="two-cores", tuned=False)
        self.options = options
        self.measurement = run.Measurement(options, where=None)

    def add(self, name, np, size, seconds, core_ns=NEAR):
        self.measurement.samples[name, np, size].append(sample(seconds, core_ns=core_ns))

    def test_only_batches_of_one_state_are_compared(self):
        self.add("pliant-plain", 2, MIB, 1.0)
        self.add("pliant-plain", 2, MIB, 1.0)
        self.add("pliant-plain", 2, MIB, 9.0, FAR)
        self.add("openmpi", 2, MIB, 2.0)
        self.add("openmpi", 2, MIB, 3.0)
        self.add("openmpi", 2, MIB, 36.0, FAR)
        cell = run.cell(self.measurement, self.options, "plain", 2, MIB)
        self.assertEqual((cell["cores"], cell["ratio"]), (measure.TOGETHER, 2.5))
        self.assertEqual(cell["elsewhere"], {"cores": measure.APART, "ratio": 4.0})

    def test_without_a_common_state_all_batches_are_compared(self):
        self.add("pliant-plain", 2, MIB, 2.0, FAR)
        self.add("openmpi", 2, MIB, 3.0)
        cell = run.cell(self.measurement, self.options, "plain", 2, MIB)
        self.assertEqual((cell["cores"], cell["ratio"], cell["elsewhere"]), (None, 1.5, None))

    def test_the_best_peer_counts(self):
        self.add("pliant-registered", 2, MIB, 1.0)
        self.add("openmpi", 2, MIB, 6.0)
        self.add("gloo-ring", 2, MIB, 4.0)
        self.add("openmpi-tcp", 2, MIB, 0.1)  # belongs to another row
        cell = run.cell(self.measurement, self.options, "registered", 2, MIB)
        self.assertEqual((cell["best_peer"], cell["ratio"], cell["goal"]), ("gloo-ring", 4.0, 5))
        self.assertIs(cell["reached"], False)

    def test_a_shared_result_is_compared_with_a_private_one(self):
        self.add("pliant-registered", 4, 16 * MIB, 3.0)
        self.add("pliant-shared", 4, 16 * MIB, 2.0)
        cell = run.cell(self.measurement, self.options, "shared", 4, 16 * MIB)
        self.assertEqual((cell["ratio_to_registered"], cell["reached"]), (1.5, True))

    def test_the_memory_limit_is_that_of_the_best_kernel(self):
        for kernel, traffic in (("read", 100 * MIB), ("update", 400 * MIB)):
            self.measurement.traffic[2, run.MEMORY_SIZE, kernel] = traffic
            self.add("memory", 2, (run.MEMORY_SIZE, kernel), 1.0)
        self.add("pliant-plain", 2, 100 * MIB, 2.0)
        cell = run.cell(self.measurement, self.options, "plain", 2, 100 * MIB)
        self.assertEqual(cell["memory"]["memory"]["kernel"], "update")
        self.assertAlmostEqual(cell["memory"]["memory"]["share"], 0.5)

    def test_an_absent_pliant_leaves_the_peers_readable(self):
        self.add("openmpi", 2, MIB, 0.004)
        cell = run.cell(self.measurement, self.options, "plain", 2, MIB)
        self.assertIsNone(cell["reached"])
        self.assertIn("4 ms", report.peers_table([cell]))


class Tables(unittest.TestCase):
    def test_sizes(self):
        self.assertEqual([run.parse_size(text) for text in ("12", "64K", "100M")],
                         [12, 64 << 10, 100 * MIB])
        with self.assertRaises(argparse.ArgumentTypeError):
            run.parse_size("3")

    def test_goals_follow_the_table(self):
        self.assertEqual(goals.against_peers("two-cores", "registered", 8, 100 * MIB), 7)
        self.assertEqual(goals.against_tuned(2, 100 * MIB), 2.5)
        self.assertIsNone(goals.against_peers("two-cores", "plain", 1, MIB))

    def test_bytes_that_must_cross_memory(self):
        self.assertEqual(run.bytes_to_cross("registered", 4, MIB), 8 * MIB)
        self.assertEqual(run.bytes_to_cross("shared", 4, MIB), 5 * MIB)

    def test_names_of_contenders_are_unique(self):
        names = [c.name for c in contenders.OPENMPI + contenders.GLOO + contenders.tuned_openmpi()]
        self.assertEqual(len(names), len(set(names)))


if __name__ == "__main__":
    unittest.main()
