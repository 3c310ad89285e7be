"""The backend "pliant" of torch.distributed gives what gloo gives."""

import os
import subprocess
import sys
import tempfile
import unittest

from python_job import VARIABLES, environment, need, run_workers

need("torch")

import torch  # noqa: E402

RANKS = 3


class Backend(unittest.TestCase):
    def equal(self, label, ours, theirs):
        if isinstance(ours, (list, tuple)):
            self.assertEqual(len(ours), len(theirs), label)
            for pair in zip(ours, theirs):
                self.equal(label, *pair)
        elif isinstance(ours, torch.Tensor):
            self.assertEqual(ours.dtype, theirs.dtype, label)
            self.assertTrue(torch.allclose(ours.double(), theirs.double(), rtol=1e-12, atol=0),
                            (label, ours, theirs))
        else:
            self.assertEqual(ours, theirs, label)

    def test_same_results_as_gloo(self):
        with tempfile.TemporaryDirectory() as folder:
            for backend in ("pliant", "gloo"):
                done = run_workers(RANKS, "distributed_worker.py", backend,
                                   os.path.join(folder, backend))
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            for rank in range(RANKS):
                ours, theirs = (torch.load(os.path.join(folder, f"{backend}-{rank}"))
                                for backend in ("pliant", "gloo"))
                self.assertEqual(ours.keys(), theirs.keys())
                for name in ours:
                    self.equal(name, ours[name], theirs[name])

    def test_a_peer_that_leaves_is_an_error_of_backward(self):
        """torch's C++ waits for our futures, and must see an error there."""
        for way in ("backend", "hook"):
            done = run_workers(2, "leaving_worker.py", way)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("backward has failed: ", done.stdout)
            self.assertIn("rank 1 (host localhost", done.stdout)

    def test_names_of_the_backend(self):
        """Capitals do not matter, and another name is torch's to refuse."""
        program = ("import torch.distributed as dist, pliant.torch\n"
                   "dist.init_process_group('PLIANT', store=dist.HashStore(), rank=0,\n"
                   "                        world_size=1)\n"
                   "print(dist.get_backend())\n"
                   "dist.destroy_process_group()\n"
                   "dist.init_process_group('plaint', store=dist.HashStore(), rank=0,\n"
                   "                        world_size=1)")
        done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True,
                              check=False, env=environment(**VARIABLES), timeout=60)
        self.assertEqual(done.stdout, "pliant\n", done.stderr)
        self.assertIn("plaint", done.stderr.splitlines()[-1])

    def test_group_of_torch_that_is_not_the_session(self):
        """Two processes of torch that nothing of ours has launched: two sessions of one."""
        program = ("import sys, torch.distributed as dist, pliant.torch\n"
                   "dist.init_process_group('pliant', rank=int(sys.argv[1]), world_size=2,\n"
                   "                        init_method='file://' + sys.argv[2])")
        with tempfile.TemporaryDirectory() as folder:
            workers = [subprocess.Popen([sys.executable, "-c", program, str(rank),
                                         os.path.join(folder, "store")], text=True,
                                        stderr=subprocess.PIPE, env=environment(**VARIABLES))
                       for rank in range(2)]
            for worker in workers:
                error = worker.communicate(timeout=60)[1]
                self.assertIn("needs one worker for each rank, as `pliant run -n N`", error)


if __name__ == "__main__":
    unittest.main()
