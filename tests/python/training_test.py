"""SynchronousSGD: the same training as one process, through kills and resizes."""

import os
import pathlib
import signal
import unittest

from python_job import PythonJob, need, run_workers

need("torch")

import torch  # noqa: E402

import pliant.torch as pliant  # noqa: E402
from train_worker import reference  # noqa: E402


class Elastic(unittest.TestCase):
    def check_training(self, name, *happenings):
        """One dies in step 8, and is replaced."""
        with PythonJob("train_worker.py", 2, "--min", "1", "--max", "3", "--restart",
                       arguments=[name]) as job:
            job.step_until(lambda: job.step() >= 10, 0)
            job.await_ready(3)
            job.step_until_members(2, 0.05)
            for happening in happenings:
                happening(job)
            ends = [torch.frombuffer(bytearray(end), dtype=torch.float64)
                    for end in job.ends(self)]
            steps = job.step()
            self.assertTrue(list(pathlib.Path(job.directory).glob("more-*")))
        self.assertGreaterEqual(steps, 200)
        expected = reference(name)
        for end in ends:
            difference = ((end - expected).norm() / expected.norm()).item()
            self.assertLess(difference, 1e-12)

    def test_adamw_is_resized_and_loses_a_worker(self):
        def up(job):
            job.resize(3)
            job.await_ready(4)
            job.step_until_members(3, 0.05)

        def kill(job):
            os.kill(job.by_last_step()[0], signal.SIGKILL)
            job.step_until_members(2, 0.05)

        def down(job):
            job.resize(1)
            job.step_until_members(1, 0.05)

        self.check_training("adamw", up, kill, down)

    def test_momentum(self):
        self.check_training("sgd")


class Ranks(unittest.TestCase):
    """Things that need several ranks, each in a job of fixed size."""

    def test_gradients(self):
        done = run_workers(3, "optimizer_worker.py", "gradients")
        self.assertEqual(done.stdout.count("all right"), 3, done.stdout + done.stderr)

    def test_models_that_differ_are_named(self):
        done = run_workers(2, "optimizer_worker.py", "differing_models", options=["--min", "1"])
        text = done.stdout + done.stderr
        self.assertRegex(text, r"this worker cannot join: .*0\.weight \(3x[45]\)")
        self.assertEqual(done.stdout.count("all right"), 1, text)


class Alone(unittest.TestCase):
    def setUp(self):
        self.session = pliant.Session(coordinator="")
        self.addCleanup(self.session.close)
        self.model = torch.nn.Linear(2, 1)

    def wrapped(self, **options):
        return pliant.SynchronousSGD(torch.optim.SGD(self.model.parameters(), lr=0.1), self.model,
                                     **options)

    def test_behaves_like_an_optimizer(self):
        optimizer = self.wrapped()
        self.assertIsInstance(optimizer, torch.optim.Optimizer)
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.1)
        optimizer.load_state_dict(optimizer.state_dict())
        self.assertIn("SGD", repr(optimizer.optimizer))

    def test_gradients_outlive_the_session(self):
        optimizer = self.wrapped()
        for _ in pliant.ElasticLoader(torch.zeros(4, 2), 4):
            self.model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
        self.session.close()
        self.assertIsNone(self.session._handle)
        self.assertEqual(self.model.weight.grad.tolist(), [[3, 3]])
        self.model(torch.ones(3, 2)).sum().backward()

    def test_gradients_of_none(self):
        """As zero_grad(set_to_none=True) of the model leaves them."""
        optimizer = self.wrapped()
        for _ in pliant.ElasticLoader(torch.zeros(8, 2), 4):
            self.model.weight.grad = self.model.bias.grad = None
            (self.model.weight.sum() * 2).backward()
            self.assertTrue(optimizer.step())
            self.assertEqual(self.model.weight.grad.tolist(), [[2, 2]])
            self.assertEqual(self.model.bias.grad.tolist(), [0])

    def test_steps_without_a_loader(self):
        optimizer = self.wrapped()
        self.session.register_value("nothing", lambda: None, lambda _: None)
        before = self.model.weight.detach().clone()
        for step in self.session.steps():
            optimizer.zero_grad()
            self.model(torch.ones(3, 2)).sum().backward()
            self.assertTrue(optimizer.step())
            if step.number == 2:
                break
        self.assertTrue(torch.allclose(self.model.weight, before - 2 * 0.1 * 3))

    def test_bad_input(self):
        optimizer = self.wrapped()
        cases = [
            ("no open step", optimizer.step),
            ("closure", lambda: optimizer.step(lambda: None)),
            ("before the optimizer is wrapped", lambda: optimizer.add_param_group({})),
            ("\"mean\" or \"sum\"", lambda: self.wrapped(loss="max")),
            ("on_nonfinite is 'panic'", lambda: self.wrapped(on_nonfinite="panic")),
            ("cannot be made elastic", lambda: pliant.SynchronousSGD(
                torch.optim.LBFGS(torch.nn.Linear(1, 1).parameters()))),
            ("no parameter", lambda: pliant.SynchronousSGD(
                torch.optim.SGD([torch.zeros(1)], lr=1))),
            ("not contiguous", lambda: self.session.all_reduce("x", torch.zeros(4, 4).t())),
            ("torch.complex64", lambda: self.session.all_reduce(
                "x", torch.zeros(1, dtype=torch.complex64))),
            ("on meta", lambda: self.session.all_reduce("x", torch.zeros(1, device="meta"))),
        ]
        for text, call in cases:
            with self.subTest(text=text), self.assertRaises(pliant.Invalid) as caught:
                call()
            self.assertIn(text, str(caught.exception))

    def test_misuse_of_a_step(self):
        optimizer = self.wrapped()
        batches = iter(pliant.ElasticLoader(torch.zeros(8, 2), 4))
        next(batches)
        self.model(torch.ones(1, 2)).sum().backward()
        with self.assertRaisesRegex(pliant.Invalid, "second gradient .* no_sync"):
            self.model(torch.ones(1, 2)).sum().backward()
        with self.assertRaisesRegex(pliant.Invalid, "step 1 was not committed"):
            next(batches)
        self.model.weight.data = torch.zeros(1, 2)
        with self.assertRaisesRegex(pliant.Invalid, "'weight' has moved"):
            optimizer.step()

    def test_clipping(self):
        optimizer = self.wrapped()
        before = self.model.weight.detach().clone()
        for number, _ in enumerate(pliant.ElasticLoader(torch.zeros(8, 2), 4)):
            optimizer.zero_grad()
            self.model(torch.ones(3, 2)).sum().backward()
            if number == 1:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1)
                with self.assertRaisesRegex(pliant.Invalid, r"one of weight, bias.*synchronize"):
                    optimizer.step()
                break
            self.assertTrue(optimizer.synchronize())
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1e-9)
            self.assertTrue(optimizer.step())
            self.assertTrue(torch.allclose(before, self.model.weight))

    def test_registered_tensors(self):
        tensor = pliant.allocate((3, 4), torch.bfloat16)
        self.assertEqual((tensor.shape, tensor.dtype), ((3, 4), torch.bfloat16))
        tensor.fill_(2)
        part = self.session.all_reduce("x", tensor)[1]
        del tensor
        self.session.close()
        self.assertEqual(part.tolist(), [2, 2, 2, 2])


if __name__ == "__main__":
    unittest.main()
