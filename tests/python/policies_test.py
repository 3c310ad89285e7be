"""Policies in Python: their hooks, what they remember and decide, and what goes wrong in them."""

import math
import pathlib
import unittest

from python_job import PythonJob, need

need("torch")

import torch  # noqa: E402

import pliant.torch as pliant  # noqa: E402
from pliant import Policy as BasePolicy  # noqa: E402
from policies_worker import DEATH, PLAN  # noqa: E402


class Elastic(unittest.TestCase):
    def test_members_decide_alike(self):
        """Through a newcomer, who gets what the policy remembers, and a death."""
        with PythonJob("policies_worker.py", 2, "--min", "1", "--max", "3") as job:
            job.step_until(lambda: job.step() >= 5, 0)  # now it asks for three
            job.await_ready(3)
            job.step_until_members(3, 0.1)
            job.step_until(lambda: job.step() >= DEATH, 0)  # one dies
            job.allow(1 << 40)
            self.assertEqual(job.end(None), 0, job.text())
            said = job.text()
            self.assertEqual(len(list(pathlib.Path(job.directory).glob("end-*"))), 2, said)
            signals = {}
            for commits in job.records().values():
                for commit in commits:
                    signals.setdefault(commit["step"], set()).add(commit["state"])
        self.assertEqual(max(signals), max(PLAN))
        self.assertEqual([step for step, found in signals.items() if len(found) > 1], [])
        self.assertIn("was killed by signal 9", said)
        for text in ("members 2 -> 3: planned", "stop: planned"):
            self.assertEqual(said.count(text), 1, said)


class Recorder(pliant.Policy):
    """Writes down when it was asked."""

    def __init__(self):
        self.asked = []

    def before_train(self, now):
        self.asked.append(("before_train", now.step))

    def before_epoch(self, now):
        self.asked.append(("before_epoch", now.step))

    def before_step(self, now):
        self.asked.append(("before_step", now.step))

    def after_step(self, now):
        self.asked.append(("after_step", now.step))

    def after_epoch(self, now):
        self.asked.append(("after_epoch", now.step))

    def after_train(self, now):
        self.asked.append(("after_train", now.step))


class Alone(unittest.TestCase):
    def setUp(self):
        self.session = pliant.Session(coordinator="")
        self.addCleanup(self.session.close)
        self.model = torch.nn.Linear(2, 1)

    def train(self, *policies, rate=0.5, steps=4):
        """Two steps an epoch; returns the learning rates."""
        optimizer = pliant.SynchronousSGD(torch.optim.SGD(self.model.parameters(), lr=rate),
                                          self.model, policies=policies, session=self.session)
        rates = []
        for inputs in pliant.ElasticLoader(torch.ones(8, 2), 4, epochs=steps // 2,
                                           session=self.session):
            optimizer.zero_grad()
            loss = self.model(inputs).mean()
            loss.backward()
            optimizer.record_loss(loss)
            optimizer.step()
            rates.append(optimizer.param_groups[0]["lr"])
        self.optimizer = optimizer
        return rates

    def test_hooks(self):
        recorder = Recorder()
        self.train(recorder)
        self.assertEqual(recorder.asked, [
            ("before_train", 0), ("before_epoch", 0), ("before_step", 0), ("after_step", 1),
            ("before_step", 1), ("after_step", 2), ("after_epoch", 2), ("before_epoch", 2),
            ("before_step", 2), ("after_step", 3), ("before_step", 3), ("after_step", 4),
            ("after_epoch", 4), ("after_train", 4)])

    def test_signals(self):
        self.train(Recorder())
        now = self.optimizer.signals
        self.assertEqual((now.step, now.batch, now.members, now.samples_committed), (4, 4, 1, 16))
        self.assertTrue(math.isfinite(now.loss))
        self.assertEqual((now.noise, now.straggler, now.nonfinite, now.links),
                         (None, None, None, ()))
        self.assertEqual(len(now.by_rank), 1)
        self.assertEqual(self.session.monitor_costs.steps, 4)

    def test_learning_rate_goes_with_the_next_step(self):
        class Half(pliant.Policy):
            def after_step(self, now):
                if now.step == 2:
                    return pliant.Decision(learning_rate_factor=0.5, reason="half")
                return None

        self.assertEqual(self.train(Half()), [0.5, 0.25, 0.25, 0.25])

    def test_first_policy_has_its_way(self):
        class Batch(pliant.Policy):
            def __init__(self, samples):
                self.samples = samples

            def after_step(self, now):
                return pliant.Decision(global_batch=self.samples, reason="mine")

        self.train(Batch(2), Batch(8))
        self.assertEqual(self.session.global_batch, 2)

    def test_shipped_policies(self):
        with self.assertRaisesRegex(pliant.Invalid, "best_sise"):
            self.session.add_policy("best_sise")
        self.train("size_schedule:1@0", "best_size:max=8")
        self.assertEqual(self.optimizer.signals.step, 4)

    def test_what_goes_wrong_in_a_policy(self):
        class Raises(pliant.Policy):
            def before_step(self, now):
                return 1 / now.step

        class Silent(pliant.Policy):
            def after_step(self, now):
                return pliant.Decision(stop=True)

        class Gossip(pliant.Policy):
            def after_step(self, now):
                return pliant.Decision(synchronisation="gossip", reason="why not")

        class Forgetful(pliant.Policy):
            state_bytes_max = 64

            def after_step(self, now):
                self.state["text"] = "x" * 64

        cases = [(Raises(), ZeroDivisionError, "division"),
                 (Silent(), pliant.Invalid, "Silent gave no reason"),
                 (Gossip(), pliant.Invalid, "'gossip' is no way"),
                 (Forgetful(), pliant.Invalid, "more than its state_bytes_max of 64")]
        for policy, kind, text in cases:
            with self.subTest(text=text), pliant.Session(coordinator="") as self.session:
                with self.assertRaisesRegex(kind, text):
                    self.train(policy)

    def test_bad_input(self):
        with self.assertRaisesRegex(pliant.Invalid, "no monitor"):
            self.session.signals
        with self.assertRaisesRegex(pliant.Invalid, "7 is no policy"):
            self.session.add_policy(7)
        self.train(Recorder())
        with self.assertRaisesRegex(pliant.Invalid, "before the first step"):
            self.session.add_policy(BasePolicy())


if __name__ == "__main__":
    unittest.main()
