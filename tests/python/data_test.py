"""pliant.data and the prefetcher, without torch and without a job."""

import os
import pathlib
import random
import shutil
import tempfile
import threading
import unittest

import python_job  # noqa: F401: where the package is

import pliant
from pliant.data import TokenFile, reading_sample, sample_random, sample_seed, write_tokens
from pliant.prefetch import Prefetcher


class Seeds(unittest.TestCase):
    def test_they_are_those_of_the_core(self):
        self.assertEqual(sample_seed(0, 0, 0), 11476564741804448695)
        self.assertEqual(sample_seed(1, 2, 3), 14288960711696168663)

    def test_random_numbers(self):
        with reading_sample(1, 2, 3):
            first = [sample_random().random(), sample_random().random()]
            with reading_sample(1, 2, 4):
                self.assertNotEqual(sample_random().random(), first[0])
            self.assertNotIn(sample_random().random(), first)
        again = random.Random(sample_seed(1, 2, 3))
        self.assertEqual(first, [again.random(), again.random()])
        with self.assertRaisesRegex(pliant.Invalid, "no sample is being read"):
            sample_random()


class Tokens(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pliant-tokens-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def put(self, name, tokens, dtype="u16"):
        write_tokens(self.folder / name, tokens, dtype)
        return self.folder / name

    def test_windows(self):
        files = TokenFile([self.put("a", range(9)), self.put("b", range(100, 106))], 4)
        self.assertEqual((len(files), files.tokens), (3, 15))
        self.assertEqual([list(files[i]) for i in range(3)],
                         [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8], [100, 101, 102, 103, 104]])
        wide = TokenFile(self.put("c", [70_000] * 5, "u32"), 4, dtype="u32")
        self.assertEqual(list(wide[0]), [70_000] * 5)

    def test_the_bytes_are_raw(self):
        self.assertEqual(self.put("a", [1, 258]).read_bytes(), b"\1\0\2\1")
        self.assertEqual(os.listdir(self.folder), ["a"])

    def test_bad_input(self):
        (self.folder / "odd").write_bytes(b"123")
        good = self.put("good", range(20))
        cases = [(str(self.folder / "missing"), lambda: TokenFile(self.folder / "missing", 4)),
                 ("has 3 bytes", lambda: TokenFile(self.folder / "odd", 1)),
                 ("4 tokens, fewer than one sample of 5",
                  lambda: TokenFile(self.put("short", range(4)), 4)),
                 ("0 tokens", lambda: TokenFile(self.put("empty", []), 4)),
                 ("no token files", lambda: TokenFile([], 4)),
                 ("at least one token", lambda: TokenFile(good, 0)),
                 ("not 'f32'", lambda: TokenFile(good, 4, dtype="f32")),
                 ("token 10 at position 10, but the vocabulary has 10",
                  lambda: TokenFile(good, 4, vocabulary=10)[2]),
                 ("does not fit into u16", lambda: self.put("x", [70_000]))]
        for text, call in cases:
            with self.subTest(text=text), self.assertRaises(pliant.Invalid) as caught:
                call()
            self.assertIn(text, str(caught.exception))
        self.assertEqual(list(TokenFile(good, 4, vocabulary=10)[1]), [4, 5, 6, 7, 8])
        with self.assertRaises(IndexError):
            TokenFile(good, 4)[4]


class Reading(unittest.TestCase):
    def prefetcher(self, **options):
        self.readers = {}
        self.read_twice = threading.Event()
        self.inside = 0
        self.most_inside = 0

        def read(epoch, sample):
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            if (epoch, sample) in self.readers:
                self.read_twice.set()
            self.readers[epoch, sample] = threading.current_thread().name
            self.inside -= 1
            if sample == 13:
                raise OSError("13 is damaged")
            return epoch * 100 + sample

        made = Prefetcher(read, list, **options)
        self.addCleanup(made.close)
        return made

    def await_guesses(self, prefetcher):
        for guess in list(prefetcher._guesses):
            self.assertTrue(guess.complete.wait(60))

    def test_reads_ahead(self):
        for threads in (1, 3):
            prefetcher = self.prefetcher(batches=2, threads=threads)
            self.assertEqual(prefetcher.take(1, [5, 2]), [105, 102])
            prefetcher.expect([(1, [7, 0]), (2, [7]), (2, [8])])
            self.await_guesses(prefetcher)
            self.assertNotIn((2, 8), self.readers)
            self.assertEqual(prefetcher.take(1, [7, 0]), [107, 100])
            self.assertEqual(prefetcher.take(2, [7]), [207])
            self.assertEqual(self.readers[1, 7], "pliant-loader")
            self.assertFalse(self.read_twice.is_set())
            self.assertEqual((prefetcher.guessed, prefetcher.read_now, prefetcher.thrown_away),
                             (2, 1, 0))

    def test_wrong_guesses(self):
        prefetcher = self.prefetcher(batches=2, threads=1)
        prefetcher.expect([(0, [1, 2]), (0, [3, 13])])
        self.assertEqual(prefetcher.take(1, [1, 2]), [101, 102])
        self.assertEqual(prefetcher.take(0, [2, 1]), [2, 1])
        prefetcher.expect([(0, [3, 13])])
        self.assertEqual(prefetcher.thrown_away, 1)
        with self.assertRaisesRegex(OSError, "13 is damaged"):
            prefetcher.take(0, [3, 13])
        self.assertEqual(self.most_inside, 1)

    def test_without_threads(self):
        prefetcher = self.prefetcher(threads=0)
        prefetcher.expect([(0, [1])])
        self.assertEqual(prefetcher.take(0, [1]), [1])
        self.assertEqual(self.readers[0, 1], threading.current_thread().name)

    def test_many_batches(self):
        for threads in (1, 4):
            prefetcher = self.prefetcher(batches=3, threads=threads)
            draw = random.Random(threads)
            for step in range(300):
                samples = list(range(20 * step, 20 * step + draw.randrange(1, 8)))
                self.assertEqual(prefetcher.take(step, samples), [step * 100 + s for s in samples])
                prefetcher.expect([(step + k, range(20 * (step + k), 20 * (step + k) + 4))
                                   for k in (1, 2, 3)])
            self.assertGreater(prefetcher.guessed, 10)
            prefetcher.close()
            self.assertEqual(prefetcher._threads, [])


if __name__ == "__main__":
    unittest.main()
