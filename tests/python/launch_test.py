"""pliant.run(): a function in several workers."""

import importlib.util
import os
import unittest

from python_job import LIBRARY, PROGRAM, environment  # noqa: F401

import pliant

os.environ["PLIANT_PROGRAM"] = PROGRAM


def add_up(number, names):
    """In each worker."""
    session = pliant.current_session()
    memory = session.allocate(1, "f64")
    memory[0] = number + session.rank
    session.all_reduce("sum", memory)
    return session.rank, memory[0], names


def fail():
    raise ValueError("out of cheese")


class Run(unittest.TestCase):
    def test_results_by_rank(self):
        found = pliant.run(add_up, 3, 10, {"a": [1]}, timeout_seconds=60)
        self.assertEqual(found, [(rank, 33.0, {"a": [1]}) for rank in range(3)])

    def test_failure_has_its_text(self):
        with self.assertRaisesRegex(pliant.PliantError, "(?s)out of cheese"):
            pliant.run(fail, 2, timeout_seconds=60)

    def test_bad_input(self):
        with self.assertRaisesRegex(pliant.Invalid, "at least one worker"):
            pliant.run(fail, 0)
        if importlib.util.find_spec("cloudpickle") is None:
            with self.assertRaisesRegex(pliant.Invalid, "cloudpickle"):
                pliant.run(lambda: 1, 1)


if __name__ == "__main__":
    unittest.main()
