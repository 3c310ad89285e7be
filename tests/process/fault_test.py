#!/usr/bin/env python3
"""Real workers, real signals: a killed or stopped rank becomes an error that names it on every
other rank, and nothing is left behind."""

import json
import os
import pathlib
import signal
import subprocess
import threading
import unittest

BUILD = pathlib.Path(os.environ["PLIANT_BUILD_DIR"])
PLIANT = str(BUILD / "pliant")
WORKER = str(next(BUILD.rglob("fault_worker")))
# Only a hang is cut off by this; nothing is expected to come near it.
PATIENCE_S = 120


class Job:
    """`pliant run` with fault workers; collects what they print."""

    def __init__(self, ranks, run_options, worker_options):
        command = [PLIANT, "run", "-n", str(ranks), "--no-prefix", *run_options, "--", WORKER,
                   *worker_options]
        self.ranks = ranks
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        self.pids = {}
        self.errors = {}
        self.stderr = ""
        self.all_run = threading.Event()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        self.cut_off = threading.Timer(PATIENCE_S, self.process.kill)
        self.cut_off.start()

    def read(self):
        for line in self.process.stdout:
            said = json.loads(line)
            if "running" in said:
                self.pids[said["running"]] = said["pid"]
                if len(self.pids) == self.ranks:
                    self.all_run.set()
            else:
                self.errors[said["rank"]] = said

    def end(self):
        self.stderr = self.process.stderr.read()
        code = self.process.wait()
        self.cut_off.cancel()
        self.reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return code


def left_behind(pids):
    """What a job could leave: processes, abstract sockets, files in shared memory."""
    found = [f"process {pid}" for pid in pids if os.path.exists(f"/proc/{pid}")]
    with open("/proc/net/unix", encoding="ascii", errors="replace") as file:
        sockets = file.read().split()
    found += [name for name in sockets for pid in pids if name.startswith(f"@pliant-{pid}-")]
    # Elastic jobs, which may run beside this test, keep a folder there; these jobs have none.
    found += [name for name in os.listdir("/dev/shm")
              if name.startswith("pliant") and not name.startswith("pliant-job-")]
    return found


class Faults(unittest.TestCase):
    def check_rest(self, job, victim, code):
        others = set(range(job.ranks)) - {victim}
        self.assertEqual(set(job.errors), others, job.stderr)
        for said in job.errors.values():
            self.assertEqual(said["code"], code, said)
            self.assertEqual(said["peer"], victim, said)
            self.assertIn(f"rank {victim} (host ", said["message"])
        self.assertEqual(left_behind(job.pids.values()), [])

    def kill_one(self, ranks, victim, run_options, worker_options):
        job = Job(ranks, run_options, worker_options)
        self.assertTrue(job.all_run.wait(PATIENCE_S))
        os.kill(job.pids[victim], signal.SIGKILL)
        code = job.end()
        self.assertEqual(code, 128 + signal.SIGKILL, job.stderr)
        self.assertIn(f"rank {victim}", job.stderr)
        self.assertIn("signal 9", job.stderr)
        self.check_rest(job, victim, "peer lost")

    def test_kill_registered(self):
        self.kill_one(4, 2, [], ["--bytes", str(64 << 20)])

    def test_kill_rank_0_plain(self):
        self.kill_one(4, 0, [], ["--bytes", str(16 << 20), "--buffer", "plain"])

    def test_kill_small_messages(self):
        self.kill_one(3, 1, [], ["--bytes", "1024"])

    def test_kill_asynchronous(self):
        self.kill_one(3, 2, [], ["--bytes", str(4 << 20), "--async", "yes"])

    def test_kill_in_a_step_of_a_job_of_fixed_size(self):
        for size in (1024, 4 << 20):
            self.kill_one(3, 1, [], ["--bytes", str(size), "--steps", "yes"])

    def test_kill_tcp(self):
        self.kill_one(4, 3, ["--transport", "tcp"], ["--bytes", str(16 << 20), "--buffer", "plain"])

    def test_kill_ring_over_shared_memory(self):
        self.kill_one(4, 1, ["--strategy", "ring"], ["--bytes", str(16 << 20)])

    def stop_one(self, run_options, worker_options):
        job = Job(3, ["--timeout", "2s", "--grace", "1s", *run_options], worker_options)
        self.assertTrue(job.all_run.wait(PATIENCE_S))
        os.kill(job.pids[1], signal.SIGSTOP)
        self.assertNotEqual(job.end(), 0)
        self.check_rest(job, 1, "timeout")

    def test_stop_registered(self):
        self.stop_one([], ["--bytes", str(16 << 20)])

    def test_stop_plain(self):
        self.stop_one([], ["--bytes", str(16 << 20), "--buffer", "plain"])

    def test_stop_tcp(self):
        self.stop_one(["--transport", "tcp"], ["--bytes", str(1 << 20), "--buffer", "plain"])

    def test_end_in_order(self):
        job = Job(4, [], ["--rounds", "200", "--bytes", "65536"])
        self.assertEqual(job.end(), 0, job.stderr)
        self.assertEqual(job.errors, {})
        self.assertEqual(left_behind(job.pids.values()), [])

    def test_end_in_order_tcp(self):
        job = Job(4, ["--transport", "tcp"], ["--rounds", "50", "--bytes", "65536"])
        self.assertEqual(job.end(), 0, job.stderr)
        self.assertEqual(job.errors, {})
        self.assertEqual(left_behind(job.pids.values()), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
