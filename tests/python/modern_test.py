"""FSDP2, DTensor, tensor parallelism and pipelining of newer torch over the backend "pliant", as
over gloo."""

import os
import sys
import tempfile
import unittest

from python_job import SKIPPED, need, run_workers

need("torch")

import torch  # noqa: E402

RANKS = 4
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
if VERSION < (2, 6):
    print(f"skipped: torch is {torch.__version__}; FSDP2 and pipelining are in 2.6 and later")
    sys.exit(SKIPPED)

# Cases whose result is that of one process with the whole batch.
LIKE_SERIAL = ("ddp", "fsdp", "fsdp_kept_whole", "hybrid_fsdp", "tensor_parallel",
               "sequence_parallel", "fsdp_of_tensor_parallel")


class Modern(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.outcomes = {}
        with tempfile.TemporaryDirectory() as folder:
            for backend in ("pliant", "gloo"):
                path = os.path.join(folder, backend)
                done = run_workers(RANKS, "modern_worker.py", backend, path)
                if done.returncode:
                    raise AssertionError(f"{backend}: {done.stdout}{done.stderr}")
                cls.outcomes[backend] = [torch.load(f"{path}-{rank}") for rank in range(RANKS)]

    def check(self, case, ours, theirs):
        self.assertEqual(len(ours), len(theirs), case)
        for number, pair in enumerate(zip(ours, theirs)):
            torch.testing.assert_close(*pair, rtol=1e-9, atol=1e-12,
                                       msg=lambda text: f"{case}, tensor {number}: {text}")

    def test_same_results_as_gloo(self):
        for rank, (ours, theirs) in enumerate(zip(*self.outcomes.values())):
            for case, result in ours.items():
                with self.subTest(case=case, rank=rank):
                    self.assertNotIsInstance(result, str, result)
                    if isinstance(theirs.get(case), str):
                        print(f"{case}: gloo has failed: {theirs[case].splitlines()[-1]}")
                    elif result is not None:
                        self.check(case, result, theirs[case])

    def test_same_results_as_one_process(self):
        for rank, ours in enumerate(self.outcomes["pliant"]):
            for case in LIKE_SERIAL:
                with self.subTest(case=case, rank=rank):
                    self.assertNotIsInstance(ours[case], str, ours[case])
                    self.check(case, ours[case], ours["serial"])


if __name__ == "__main__":
    unittest.main()
