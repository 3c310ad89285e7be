"""ElasticLoader: each sample in one committed step, read ahead and augmented alike, whoever comes,
goes or dies."""

import os
import pathlib
import signal
import unittest
import warnings

from python_job import PythonJob, need

need("torch")

import torch  # noqa: E402

import pliant.torch as pliant  # noqa: E402
from loader_worker import EPOCHS, SAMPLES, SEED  # noqa: E402
from pliant.data import LearningRate, sample_random, sample_seed, write_tokens  # noqa: E402


def drawn(sample):
    """What is drawn for a sample in all epochs, whatever the cluster."""
    return sum(int(torch.randint(1 << 20, (), generator=torch.Generator().manual_seed(
        sample_seed(SEED, epoch, sample)))) for epoch in range(EPOCHS))


class Jobs(unittest.TestCase):
    expected = [float(EPOCHS)] * SAMPLES + [float(drawn(sample)) for sample in range(SAMPLES)]

    def check(self, form, batch, members, *run_options, kind="constant", ahead=3, threads=1):
        """Each sample was in one committed step of each epoch, and drew what it would have drawn
        anywhere."""
        with PythonJob("loader_worker.py", members, *run_options,
                       arguments=[form, str(batch), kind, str(ahead), str(threads)]) as job:
            job.step_until(lambda: job.step() >= 3, 0)
            if run_options:
                os.kill(job.by_last_step()[0], signal.SIGKILL)
                job.step_until_members(members - 1, 0)
                job.step_until(lambda: job.step() >= 20, 0)  # in the second epoch
                job.resize(members + 1)
                job.await_ready(members + 2)
                job.step_until_members(members + 1, 0.15)
            for end in job.ends(self):
                found = torch.frombuffer(bytearray(end), dtype=torch.float64)
                self.assertEqual(found.tolist(), self.expected)
            self.assertEqual(bool(list(pathlib.Path(job.directory).glob("ahead-*"))), ahead > 0)

    def test_range_of_epochs(self):
        self.check("range", 7, 2, "--min", "1", "--max", "3")

    def test_one_loop_and_several_threads(self):
        self.check("one", 7, 2, "--min", "1", "--max", "3", threads=3)

    def test_batch_scaled_by_the_members(self):
        self.check("range", 4, 2, "--min", "1", "--max", "3", kind="scaled")

    def test_one_worker_that_reads_nothing_ahead(self):
        self.check("one", 16, 1, ahead=0)

    def test_members_without_samples_take_part(self):
        self.check("one", 2, 3)


class Alone(unittest.TestCase):
    def setUp(self):
        self.session = pliant.Session(coordinator="")
        self.addCleanup(self.session.close)
        self.model = torch.nn.Linear(2, 1)
        self.inner = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def batches(self, loader):
        optimizer = pliant.SynchronousSGD(self.inner, self.model)
        found = []
        for batch in loader:
            found.append(batch)
            optimizer.step()
        return found

    def test_order(self):
        loader = pliant.ElasticLoader(torch.arange(10), 4, epochs=2, threads=2, shuffle=False,
                                      collate_fn=torch.stack)
        seen = [batch.tolist() for batch in self.batches(loader)]
        self.assertEqual(seen, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2)
        self.assertEqual((len(seen), loader.epoch), (len(loader), 2))
        self.assertEqual((loader.prefetcher.guessed, loader.prefetcher.read_now), (5, 1))

    def test_batch_that_is_set_between_steps(self):
        loader = pliant.ElasticLoader(range(20), 4, epochs=1, shuffle=False)
        optimizer = pliant.SynchronousSGD(self.inner, self.model)
        seen = []
        for batch in loader:
            seen.append(batch.tolist())
            optimizer.step()
            if len(seen) == 2:
                self.session.set_global_batch(6)
        self.assertEqual(seen, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11, 12, 13],
                                [14, 15, 16, 17, 18, 19]])
        self.assertEqual(loader.prefetcher.thrown_away, 2)

    def test_learning_rate_follows_the_batch(self):
        rate = LearningRate("linear", 4, warm_up_steps=2, optimizer=self.inner)
        optimizer = pliant.SynchronousSGD(self.inner, self.model)
        rates = []
        for _ in pliant.ElasticLoader(range(40), 4, epochs=1):
            rate.apply()
            optimizer.step()
            rates.append(round(self.inner.param_groups[0]["lr"], 6))
            self.session.set_global_batch(12)
        self.assertEqual(rates, [0.1, 0.1, 0.2, 0.3])

    def test_random_numbers_are_those_of_the_sample(self):
        class Dataset:
            def __len__(self):
                return 6

            def __getitem__(self, index):
                first = torch.rand((), generator=pliant.sample_generator())
                second = torch.rand((), generator=pliant.sample_generator())
                return index, first, second, sample_random().random()

        loader = pliant.ElasticLoader(Dataset(), 3, epochs=1, seed=5, threads=2)
        self.assertEqual(loader.seed_of(4), sample_seed(5, 0, 4))
        for batch in self.batches(loader):
            for index, first, second, third in zip(*batch):
                expected = torch.Generator().manual_seed(sample_seed(5, 0, int(index)))
                self.assertEqual(first, torch.rand((), generator=expected))
                self.assertEqual(second, torch.rand((), generator=expected))
                self.assertNotEqual(first, third)
        with self.assertRaisesRegex(pliant.Invalid, "no sample is being read"):
            pliant.sample_generator()

    def test_tokens(self):
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"pliant-tokens-{os.getpid()}")
        self.addCleanup(os.unlink, path)
        for dtype, first in (("u16", 65_500), ("u32", 4_000_000_000)):
            write_tokens(path, range(first, first + 13), dtype)
            dataset = pliant.TokenDataset(path, 4, dtype=dtype)
            inputs, targets = dataset[2]
            self.assertEqual(inputs.tolist(), list(range(first + 8, first + 12)))
            self.assertEqual(targets.tolist(), list(range(first + 9, first + 13)))
            self.assertEqual((len(dataset), inputs.dtype), (3, torch.int64))
        batches = self.batches(pliant.ElasticLoader(dataset, 2, epochs=1))
        self.assertEqual([list(inputs.shape) for inputs, _ in batches], [[2, 4], [1, 4]])

    def test_errors_of_a_dataset_reach_the_loop(self):
        class Broken:
            def __len__(self):
                return 8

            def __getitem__(self, index):
                if index == 5:
                    raise OSError("sample 5 is damaged")
                return index

        optimizer = pliant.SynchronousSGD(self.inner, self.model)
        seen = 0
        with self.assertRaisesRegex(OSError, "sample 5 is damaged"):
            for _ in pliant.ElasticLoader(Broken(), 2, shuffle=False):
                seen += 1
                optimizer.step()
        self.assertEqual(seen, 2)

    def test_dataset_that_is_shorter_than_a_batch(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = pliant.ElasticLoader(range(3), 9, epochs=2)
        self.assertEqual(len(caught), 1)
        self.assertRegex(str(caught[0].message), "has 3 samples.*batch_size is 9")
        self.assertEqual([len(batch) for batch in self.batches(loader)], [3, 3])

    def test_bad_input(self):
        cases = [("is empty", lambda: pliant.ElasticLoader([], 9)),
                 ("batch_size is 0", lambda: pliant.ElasticLoader(range(8), 0)),
                 ("give one of them", lambda: pliant.ElasticLoader(range(8))),
                 ("give one of them", lambda: pliant.ElasticLoader(
                     range(8), 2, batch_size_per_member=2)),
                 ("leave it out", lambda: pliant.ElasticLoader(range(8), 2, epochs=0)),
                 ("num_prefetch is -1", lambda: pliant.ElasticLoader(range(8), 2,
                                                                     num_prefetch=-1)),
                 ("'cubic'", lambda: LearningRate("cubic", 4)),
                 ("base_batch is 0", lambda: LearningRate("linear", 0))]
        for text, call in cases:
            with self.subTest(text=text), self.assertRaises(pliant.Invalid) as caught:
                call()
            self.assertIn(text, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
