#!/usr/bin/env python3
"""`pliant bench` with real workers: every operation, transport and memory, bad input, Ctrl-C.

The program is that of PLIANT_PROGRAM, or of the build folder PLIANT_BUILD_DIR.
"""

import json
import os
import pathlib
import signal
import subprocess
import unittest

PROGRAM = os.environ.get("PLIANT_PROGRAM") or os.path.join(
    os.environ.get("PLIANT_BUILD_DIR", "build/release"), "pliant")
DEADLINE_S = 120

BLOCKWISE = ["all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"]
OPS = ["all_reduce", "reduce", "broadcast", *BLOCKWISE, "barrier", "send_recv"]
FIELDS = ["op", "np", "bytes", "dtype", "op_kind", "strategy", "transport", "buffer",
          "repetitions", "min_us", "median_us", "p99_us"]


def bench(*words):
    return subprocess.run([PROGRAM, "bench", *words], capture_output=True, text=True,
                          timeout=DEADLINE_S, stdin=subprocess.DEVNULL)


def is_running(pid):
    """Whether it is there and not only waits to be reaped."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return fields[0] not in "ZX"


def workers_of(pid):
    """The processes of a benchmark that run its hidden subcommand."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid and b"bench-worker" in words:
            found.append(int(entry.name))
    return found


class Measuring(unittest.TestCase):
    def cells(self, *words):
        done = bench(*words, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def check_op(self, op, transport, buffer):
        nps = [2, 3] if op == "send_recv" else [1, 2, 3]
        sizes = [0] if op == "barrier" else [0, 4, 1024, 300 * 1024]
        cells = self.cells(op, "--np", ",".join(map(str, nps)), "--sizes", "0,4,1K,300K",
                           "--transport", transport, "--buffer", buffer, "--repetitions", "3")
        self.assertEqual([(cell["np"], cell["bytes"]) for cell in cells],
                         [(np, size) for np in nps for size in sizes])
        for cell in cells:
            self.assertEqual(list(cell), FIELDS)
            self.assertEqual(cell["op"], op)
            self.assertEqual(cell["dtype"], "f32")
            self.assertEqual(cell["op_kind"], "sum")
            self.assertEqual(cell["strategy"], "auto")
            self.assertEqual(cell["transport"], transport)
            self.assertEqual(cell["buffer"], buffer)
            self.assertEqual(cell["repetitions"], 3)
            self.assertLessEqual(cell["min_us"], cell["median_us"])
            self.assertLessEqual(cell["median_us"], cell["p99_us"])

    def test_every_op_transport_and_buffer(self):
        for op in OPS:
            for transport in ["shm", "tcp"]:
                for buffer in ["registered", "plain"]:
                    with self.subTest(op=op, transport=transport, buffer=buffer):
                        self.check_op(op, transport, buffer)

    def test_a_shared_result(self):
        for transport in ["shm", "tcp", "auto"]:
            with self.subTest(transport=transport):
                self.check_op("all_reduce", transport, "shared")

    def test_types_and_reductions(self):
        for dtype in ["i8", "u16", "i64", "f16", "bf16", "f64"]:
            for kind in ["mean", "min", "prod"]:
                with self.subTest(dtype=dtype, kind=kind):
                    cells = self.cells("reduce_scatter", "--np", "3", "--sizes", "4096", "--dtype",
                                       dtype, "--op", kind, "--repetitions", "1")
                    self.assertEqual([(c["dtype"], c["op_kind"]) for c in cells], [(dtype, kind)])
        self.assertEqual(len(self.cells("all_to_all", "--np", "3", "--sizes", "77", "--dtype",
                                        "bool", "--repetitions", "1")), 1)

    def test_strategies(self):
        for strategy in ["ring", "star@1", "clique", "tree:1,1,1"]:
            with self.subTest(strategy=strategy):
                cells = self.cells("all_reduce", "--np", "3", "--sizes", "64K", "--strategy",
                                   strategy, "--repetitions", "2")
                self.assertEqual([cell["strategy"] for cell in cells], [strategy])

    def test_time_bounds_the_repetitions(self):
        few, = self.cells("all_reduce", "--np", "2", "--sizes", "4M", "--seconds", "0.000001")
        many, = self.cells("all_reduce", "--np", "1", "--sizes", "4", "--seconds", "0.2")
        self.assertEqual(few["repetitions"], 5)
        self.assertGreater(many["repetitions"], 1000)

    def test_the_table_is_aligned(self):
        done = bench("all_reduce", "--np", "1,2", "--sizes", "1K,1M", "--repetitions", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        lines = done.stdout.splitlines()
        self.assertEqual(lines[0].split(), ["op", "np", "size", "strategy", "transport", "buffer",
                                            "repetitions", "min", "median", "p99", "algbw",
                                            "busbw"])
        self.assertEqual(len(lines), 5)
        self.assertEqual({len(line) for line in lines}, {len(lines[0])})

    def test_explains(self):
        done = bench("all_reduce", "--np", "2", "--sizes", "1K,1M", "--repetitions", "1",
                     "--explain")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("predicted"), 2, done.stdout)
        done = bench("all_reduce", "--np", "2", "--sizes", "1K", "--repetitions", "1", "--explain",
                     "--json")
        self.assertEqual(list(json.loads(done.stdout)), FIELDS)
        self.assertIn("predicted", done.stderr)


class BadInput(unittest.TestCase):
    def check_refused(self, words, *parts):
        done = bench(*words)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        for part in parts:
            self.assertIn(part, done.stderr)

    def test_names_what_is_known(self):
        self.check_refused(["all_redude"], "'all_redude'", *OPS)
        self.check_refused(["all_reduce", "--dtype", "f33"], "--dtype", "'f33'", "bf16")
        self.check_refused(["all_reduce", "--op", "xor"], "--op", "'xor'", "sum")
        self.check_refused(["all_reduce", "--strategy", "rings"], "--strategy", "'rings'", "ring",
                           "multi_star")
        self.check_refused(["all_reduce", "--transport", "rdma"], "'rdma'", "shm", "tcp")
        self.check_refused(["all_reduce", "--buffer", "gpu"], "'gpu'", "registered", "plain")

    def test_refuses_values_that_make_no_sense(self):
        self.check_refused(["all_reduce", "--sizes", "1Q"], "--sizes", "'1Q'")
        self.check_refused(["all_reduce", "--sizes", "-4"], "--sizes")
        self.check_refused(["all_reduce", "--sizes", "1023"], "--sizes", "multiple")
        self.check_refused(["all_reduce", "--np", "two"], "--np", "'two'")
        self.check_refused(["all_reduce", "--np", "0"], "--np")
        self.check_refused(["all_reduce", "--seconds", "0"], "--seconds")
        self.check_refused(["all_reduce", "--dtype", "bool"], "bool")
        self.check_refused(["reduce", "--buffer", "shared"], "all_reduce")
        self.check_refused(["send_recv", "--np", "1"], "two")
        self.check_refused(["all_reduce", "--np", "2", "--strategy", "tree:0,0,0"], "2 workers")

    def test_refuses_unknown_options(self):
        done = bench("all_reduce", "--colour", "red")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--colour", done.stderr)
        self.assertEqual(bench().returncode, 2)

    def test_help(self):
        done = bench("--help")
        self.assertEqual(done.returncode, 0)
        for word in [*OPS, "--np", "--json", "busbw", "median_us"]:
            self.assertIn(word, done.stdout)


class Interrupted(unittest.TestCase):
    def start(self):
        """A benchmark whose second row would take minutes."""
        running = subprocess.Popen(
            [PROGRAM, "bench", "all_reduce", "--np", "2", "--sizes", "4,64M", "--repetitions",
             "20000", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(running.stdout.close)
        self.addCleanup(running.stderr.close)
        self.addCleanup(lambda: running.poll() is None and running.kill())
        return running

    def check_ends(self, end_signal):
        running = self.start()
        json.loads(running.stdout.readline())
        workers = workers_of(running.pid)
        self.assertEqual(len(workers), 2)
        os.kill(running.pid, end_signal)
        _, error = running.communicate(timeout=DEADLINE_S)
        self.assertEqual(running.returncode, 128 + end_signal, error)
        self.assertNotIn("WRONG", error)
        for worker in workers:
            self.assertFalse(is_running(worker))

    def test_interrupt(self):
        self.check_ends(signal.SIGINT)

    def test_terminate(self):
        self.check_ends(signal.SIGTERM)


if __name__ == "__main__":
    unittest.main()
