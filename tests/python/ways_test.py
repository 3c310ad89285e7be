"""Every step of model averaging, pair averaging and switches between them follows the written rule
(docs/TRAINING.md), also when members come, go and die."""

import json
import os
import pathlib
import signal
import unittest

from python_job import PythonJob, need, run_workers

need("torch")

import torch  # noqa: E402

import pliant.torch as pliant  # noqa: E402
from ways_worker import ALPHA, RATE, STEPS_MAX  # noqa: E402


class Rules(unittest.TestCase):
    """In a job of fixed size; the workers compare."""

    def check(self, way, what="rules"):
        done = run_workers(3, "ways_worker.py", what, way)
        self.assertEqual(done.stdout.count("all right"), 3, done.stdout + done.stderr)

    def test_synchronous(self):
        self.check("synchronous")

    def test_model_averaging(self):
        self.check("model_averaging")

    def test_pair_averaging(self):
        self.check("pair_averaging")

    def test_adaptive(self):
        self.check("adaptive")

    def test_compressed_gradients(self):
        for kind in ("bf16", "int8"):
            self.check(kind, "compressed")


class Elastic(unittest.TestCase):
    """One dies in step 8, one by the test, one joins, two leave."""

    def history(self, way):
        """What each member wrote down, by step and pid: all who began it, and who committed it."""
        with PythonJob("ways_worker.py", 3, "--min", "1", "--max", "4", arguments=[way]) as job:
            job.step_until(lambda: job.step() >= 10, 0)
            job.resize(4)
            job.await_ready(5)
            job.step_until_members(4, 0.05)
            os.kill(job.by_last_step()[0], signal.SIGKILL)
            job.step_until_members(3, 0.05)
            job.resize(2)
            job.step_until_members(2, 0.05)
            job.allow(1 << 40)
            self.assertEqual(job.end(None), 0, job.text())
            begun, committed = {}, {}
            for path in pathlib.Path(job.directory).glob("lines-*"):
                pid = int(path.name.split("-")[1])
                for text in path.read_text(encoding="ascii").splitlines():
                    line = {key: torch.tensor(value, dtype=torch.float64)
                            if isinstance(value, list) else value
                            for key, value in json.loads(text).items()}
                    if "begun" in line:
                        begun.setdefault(line["begun"], {})[pid] = line["before"]
                    else:
                        committed.setdefault(line["committed"], {})[pid] = line
        self.assertEqual(sorted(committed), list(range(1, STEPS_MAX + 1)))
        return begun, committed

    def close(self, found, expected, what):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13, msg=lambda text:
                                   f"{what}: {text}")

    def check_newcomers(self, committed):
        """Each began with the model of one member, whole."""
        seen = set(committed[1])
        for step in range(2, STEPS_MAX + 1):
            for pid in set(committed[step]) - seen:
                ends = [line["after"] for line in committed[step - 1].values()]
                self.assertTrue(any(torch.equal(committed[step][pid]["before"], end)
                                    for end in ends), (step, pid))
            seen |= set(committed[step])
        self.assertEqual(len(seen), 5)

    def test_model_averaging(self):
        begun, committed = self.history("model_averaging")
        self.check_newcomers(committed)
        for step, lines in committed.items():
            # Of those that died in it, some had handed their model in.
            counted = next(iter(lines.values()))["contributors"]
            alive = [line["before"] for line in lines.values()]
            everybody = list(begun[step].values())
            self.assertIn(counted, (len(alive), len(everybody)))
            mean = torch.stack(alive if counted == len(alive) else everybody).mean(0)
            for line in lines.values():
                drawn = (1 - ALPHA) * line["before"] + ALPHA * mean
                self.close(line["after"], drawn - RATE * line["gradient"], f"step {step}")

    def test_pair_averaging(self):
        _, committed = self.history("pair_averaging")
        self.check_newcomers(committed)
        pulls = 0
        for step, lines in committed.items():
            of_rank = {line["rank"]: pid for pid, line in lines.items()}
            for line in lines.values():
                drawn = line["before"]
                if line["pulled_version"] and line["pulled_from"] is None:
                    continue  # of one that is gone
                if line["pulled_from"] is not None:
                    pulls += 1
                    other = committed[line["pulled_version"]][of_rank[line["pulled_from"]]]
                    drawn = (drawn + other["after"]) / 2
                self.close(line["after"], drawn - RATE * line["gradient"], f"step {step}")
        self.assertGreater(pulls, STEPS_MAX)


class Alone(unittest.TestCase):
    def setUp(self):
        self.session = pliant.Session(coordinator="")
        self.addCleanup(self.session.close)
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def test_parameters_outlive_the_session(self):
        wrapped = pliant.ModelAveraging(self.optimizer, self.model)
        for _ in pliant.ElasticLoader(torch.zeros(4, 2), 4):
            self.model(torch.ones(4, 2)).sum().backward()
            self.assertTrue(wrapped.step())
        expected = self.model.weight.tolist()
        self.session.close()
        self.assertIsNone(self.session._handle)
        self.assertEqual(self.model.weight.tolist(), expected)
        self.optimizer.step()

    def test_bad_input(self):
        cases = [
            ("alpha is 0:", pliant.ModelAveraging, {"alpha": 0}),
            ("alpha is nan:", pliant.ModelAveraging, {"alpha": float("nan")}),
            ("'gossip' is no way", pliant.Adaptive, {"begin": "gossip"}),
            ("'zip' is no compression", pliant.SynchronousSGD, {"compression": "zip"}),
        ]
        for text, make, options in cases:
            with self.subTest(text=text), pliant.Session(coordinator="") as session:
                with self.assertRaises(pliant.Invalid) as caught:
                    make(self.optimizer, session=session, **options)
                self.assertIn(text, str(caught.exception))

    def test_switches_need_adaptive(self):
        wrapped = pliant.SynchronousSGD(self.optimizer, self.model)
        self.assertEqual(wrapped.synchronisation, "synchronous")
        with self.assertRaisesRegex(pliant.Invalid, "may_switch"):
            wrapped._together.switch_to("pair_averaging")


if __name__ == "__main__":
    unittest.main()
