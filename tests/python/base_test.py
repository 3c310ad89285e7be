"""The package without torch: operations alone and as several ranks, memory, errors, bad input."""

import array
import gc
import os
import subprocess
import sys
import threading
import unittest

from python_job import HERE, LIBRARY, SOURCE, VARIABLES, environment, run, run_workers

import pliant
from pliant import _library


def floats(*values):
    return array.array("f", values)


def run_program(ranks, text):
    return run("run", "-n", str(ranks), "--", sys.executable, "-c", text,
               env=environment(**VARIABLES))


class Ranks(unittest.TestCase):
    def check(self, done, ranks):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("all right"), ranks)

    def test_alone(self):
        self.check(subprocess.run([sys.executable, str(HERE / "collectives_worker.py")],
                                  capture_output=True, text=True, check=False,
                                  env=environment(**VARIABLES)), 1)

    def test_four(self):
        self.check(run_workers(4, "collectives_worker.py"), 4)

    def test_lost_peer_is_named(self):
        program = ("import os, pliant; session = pliant.Session()\n"
                   "session.barrier('start')\n"
                   "if session.rank == 1: os._exit(3)\n"
                   "try: session.barrier('in vain')\n"
                   "except pliant.PeerLost as error: print(error.peer, error.epoch, error)")
        done = run_program(3, program)
        self.assertEqual(done.returncode, 3)
        self.assertEqual(done.stdout.count(" 1 1 "), 2, done.stdout + done.stderr)

    def test_snapshots(self):
        program = ("import array, pliant; session = pliant.Session()\n"
                   "state, value = array.array('d', [1, 2]), {'epoch': 3}\n"
                   "session.register_state('state', state)\n"
                   "session.register_value('value', lambda: value, value.update)\n"
                   "snapshot = session.snapshot_state(7)\n"
                   "snapshot.wait(); assert snapshot.done()\n"
                   "state[1] = value['epoch'] = 9\n"
                   "session.barrier('changed')\n"
                   "print(session.restore_state(), state.tolist(), value)\n"
                   "try: session.restore_state(8)\n"
                   "except pliant.Invalid as error: print(error)\n"
                   "session.barrier('end')")
        done = run_program(2, program)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("7 [1.0, 2.0] {'epoch': 3}"), 2, done.stdout)


class Alone(unittest.TestCase):
    def setUp(self):
        self.session = pliant.Session(coordinator="")
        self.addCleanup(self.session.close)

    def test_view(self):
        self.assertEqual(self.session.view, pliant.View(1, 0, 1, 0, 1, 1))

    def test_options(self):
        with pliant.Session(coordinator="", heap_bytes_max=1 << 20) as small:
            with self.assertRaises(pliant.Overloaded):
                small.allocate(1 << 24)
        with self.assertRaises(pliant.Invalid):
            pliant.Session(coordinator="", strategy="nonsense")
        with self.assertRaises(pliant.Invalid):
            pliant.Session(coordinator="nowhere")

    def test_memory_is_released_when_nobody_sees_it(self):
        memory = self.session.allocate(1 << 20, "f32")
        self.assertEqual((memory.format, len(memory), memory[5]), ("f", 1 << 20, 0))
        part = memory[10:20]
        del memory
        gc.collect()
        self.assertEqual(len(self.session._views), 1)
        part[0] = 5
        del part
        gc.collect()
        self.assertEqual(len(self.session._views), 0)

    def test_memory_outlives_close(self):
        memory = self.session.allocate(4, "f64")
        memory[3] = 7
        self.session.close()
        self.assertEqual(memory.tolist(), [0, 0, 0, 7])
        with self.assertRaises(pliant.Cancelled):
            self.session.all_reduce("late", memory)
        self.assertIsNotNone(self.session._handle)
        del memory
        gc.collect()
        self.assertIsNone(self.session._handle)

    def test_work_that_is_dropped(self):
        self.session.all_reduce_async("dropped", bytearray(1 << 20))
        gc.collect()
        self.session.all_reduce("dropped", bytearray(1 << 20))

    def test_work_of_several_threads(self):
        work = self.session.all_reduce_async("threads", floats(1, 2))
        results = []
        threads = [threading.Thread(target=lambda: results.append(work.result()))
                   for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [floats(1, 2)] * 4)

    def test_types(self):
        for dtype in pliant.DType:
            memory = self.session.allocate(8, dtype)
            self.assertEqual(memory.nbytes, 8 * dtype.size)
            self.assertEqual(len(self.session.allocate(0, dtype)), 0)
        halves = array.array("H", [0x3f80] * 4)  # 1.0 in bf16
        self.assertEqual(self.session.all_reduce("bf16", halves, dtype="bf16"), halves)
        self.assertEqual(self.session.broadcast("text", b"bytes"), b"bytes")

    def test_bad_input(self):
        session = self.session
        cases = [
            (pliant.Invalid, "read-only", lambda: session.all_reduce("x", b"abc")),
            (pliant.Invalid, "not contiguous",
             lambda: session.all_reduce("x", memoryview(bytearray(8))[::2])),
            (pliant.Invalid, "f32, the output f64",
             lambda: session.all_reduce("x", floats(1), array.array("d", [1]))),
            (pliant.Invalid, "2 elements; 1 are needed",
             lambda: session.all_reduce("x", floats(1), floats(1, 2))),
            (pliant.Invalid, "no operator", lambda: session.all_reduce("x", floats(1), op="xor")),
            (pliant.Invalid, "no type", lambda: session.all_reduce("x", floats(1), dtype="f33")),
            (pliant.Invalid, "no whole f64",
             lambda: session.all_reduce("x", floats(1), dtype="f64")),
            (pliant.Invalid, "of format 'w'",
             lambda: session.all_reduce("x", array.array("u", "ab"))),
            (pliant.Invalid, "name", lambda: session.all_reduce("", floats(1))),
            (pliant.Invalid, "no rank 4", lambda: session.broadcast("x", floats(1), root=4)),
            (pliant.Invalid, "counts [1, 1]",
             lambda: session.all_gather("x", floats(1), floats(1, 2), counts=[1, 1])),
            (pliant.Invalid, "the counts [3] ask for 3",
             lambda: session.all_gather("x", floats(1), floats(1), counts=[3])),
            (pliant.Invalid, "needs an output", lambda: session.gather("x", floats(1))),
            (pliant.Invalid, "needs an input", lambda: session.scatter("x", None, floats(1))),
            (pliant.Invalid, "no collective", lambda: session.explain("dance", 1)),
            (pliant.Invalid, "", lambda: session.group([1])),
            (pliant.Invalid, "", lambda: session.request(0, "nothing")),
            (pliant.Invalid, "is empty", lambda: session.register_state("x", bytearray())),
            (pliant.Invalid, "below zero", lambda: session.use_sampler(-1, 1)),
            (TypeError, "buffer protocol", lambda: session.all_reduce("x", [1, 2])),
        ]
        for kind, text, call in cases:
            with self.subTest(text=text), self.assertRaises(kind) as caught:
                call()
            self.assertIn(text, str(caught.exception))

    def test_shared_result_that_something_sees_is_not_changed(self):
        shared = self.session.all_reduce_shared("x", floats(1, 2))
        self.assertEqual((shared.tolist(), shared.readonly), ([1, 2], True))
        part = shared[1:]  # as arrays of numpy and torch do
        with self.assertRaisesRegex(pliant.Invalid, "still seen"):
            self.session.all_reduce_shared("x", floats(2, 3))
        self.assertEqual(part[0], 2)
        del part
        self.session.all_reduce_shared("x", floats(2, 3))
        with self.assertRaises(ValueError):
            shared.tolist()

    def test_steps(self):
        session = self.session
        state = floats(0)
        value = {"epoch": 3}
        session.register_state("state", state)
        session.register_value("value", lambda: value, value.update)
        session.use_sampler(10, 4, epochs=2, shuffle=False)
        seen = []
        for step in session.steps():
            seen.append((step.number, step.samples))
            out = floats(0)
            step.all_reduce("sum", floats(*[float(sum(step.samples))]), out, op="sum")
            self.assertTrue(step.commit())
            self.assertEqual(out[0], sum(seen[-1][1]))
            self.assertEqual(step.result("sum").tolist(), list(out))
            self.assertEqual(step.contributors, (1, len(seen[-1][1])))
        self.assertEqual(seen, [(i + 1, samples) for i, samples in enumerate(
            [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2)])
        self.assertIsNone(session.begin_step())
        self.assertEqual(session.samples_committed, 20)

    def test_misuse_of_steps(self):
        with self.assertRaisesRegex(pliant.Invalid, "not committed"):
            for _ in self.session.steps():
                pass
        with self.assertRaisesRegex(pliant.Invalid, "committed"):
            self.session.begin_step()
        with self.assertRaisesRegex(pliant.Invalid, "too late"):
            self.session.register_state("late", bytearray(4))

    def test_value_that_is_too_long(self):
        self.session.register_value("long", lambda: "x" * 100, lambda _: None, 50)
        with self.assertRaisesRegex(pliant.Invalid, "102 bytes as JSON"):
            self.session.begin_step()

    def test_size_cannot_be_proposed_alone(self):
        with self.assertRaises(pliant.Invalid):
            self.session.propose_size(3)

    def test_current_session(self):
        self.assertIs(pliant.current_session(), self.session)
        self.session.close()
        self.session.close()
        with pliant.current_session() as other:
            self.assertIsNot(other, self.session)

    def test_forked_child_leaves_it_alone(self):
        pid = os.fork()
        if pid == 0:
            self.session.close()
            os._exit(self.session.closed)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(self.session.all_reduce("after", floats(2)), floats(2))


class Library(unittest.TestCase):
    """Finding libpliant, in a process of its own."""

    def open(self, **variables):
        return subprocess.run(
            [sys.executable, "-c", "import pliant; pliant.Session(); print('open')"],
            capture_output=True, text=True, check=False,
            env=environment(PYTHONPATH=str(SOURCE / "python"), **variables))

    def test_by_variable(self):
        for path in (LIBRARY, os.path.dirname(LIBRARY)):
            self.assertEqual(self.open(PLIANT_LIBRARY=path).stdout, "open\n")

    def test_missing(self):
        done = self.open(PLIANT_LIBRARY="/nowhere/libpliant.so")
        self.assertIn("LibraryNotFound: libpliant was not found", done.stderr)
        self.assertIn("/nowhere/libpliant.so", done.stderr)
        self.assertIn("PLIANT_LIBRARY=", done.stderr)

    def test_another_library(self):
        done = self.open(PLIANT_LIBRARY="libc.so.6")
        self.assertIn("has no pliant_version", done.stderr)

    def test_another_version(self):
        found = _library.library()
        kept, _library.VERSION = _library.VERSION, "9.9.0"
        try:
            with self.assertRaisesRegex(pliant.LibraryNotFound, "this package is 9.9.0"):
                _library._declare(found, "libpliant.so")
        finally:
            _library.VERSION = kept

    def test_version_is_that_of_the_project(self):
        project = (SOURCE / "CMakeLists.txt").read_text(encoding="utf-8")
        self.assertIn(f"project(pliant VERSION {pliant.__version__} ", project)

    def test_without_torch(self):
        code = "import sys; sys.modules['torch'] = None; import pliant.torch"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              check=False, env=environment(**VARIABLES))
        self.assertIn("ImportError: pliant.torch needs PyTorch 1.13 or later", done.stderr)


if __name__ == "__main__":
    unittest.main()
