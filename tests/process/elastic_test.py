#!/usr/bin/env python3
"""Real workers that come, go and die: the training goes on, every commit agrees with a serial
replay, and nothing is left behind."""

import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
import unittest

BUILD = pathlib.Path(os.environ["PLIANT_BUILD_DIR"])
PLIANT = str(BUILD / "pliant")
# Only a hang is cut off by this; nothing is expected to come near it.
PATIENCE_S = 120
SAMPLES = 10000
RECORD = struct.Struct("<QIIQQQqqqqQ")
STEP, EPOCH, MEMBERS = 0, 1, 2


class Job:
    """`pliant run` with chaos workers, and what they wrote down."""

    def __init__(self, members, run_options=(), worker_options=()):
        self.folder = tempfile.mkdtemp(prefix="pliant-elastic-")
        command = [PLIANT, "run", "-n", str(members), "--no-prefix", *run_options, "--", PLIANT,
                   "chaos-worker", "--records", self.folder, *worker_options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        self.lines = []
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        self.cut_off = threading.Timer(PATIENCE_S, self.process.kill)
        self.cut_off.start()

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line)

    def records(self):
        """The commits of each worker, by pid."""
        found = {}
        for name in os.listdir(self.folder):
            data = pathlib.Path(self.folder, name).read_bytes()
            whole = len(data) // RECORD.size * RECORD.size
            found[int(name)] = list(RECORD.iter_unpack(data[:whole]))
        return found

    def await_that(self, condition):
        """Waits until the condition holds of the records; the job's end is a fault."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            records = self.records()
            if condition(records):
                return records
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the job ended or hung: {''.join(self.lines)}")
            time.sleep(0.005)

    def await_step(self, step, members=None):
        """Until somebody has committed this step, with so many members."""
        return self.await_that(lambda records: any(
            made[-1][STEP] >= step and members in (None, made[-1][MEMBERS])
            for made in records.values() if made))

    def newest(self):
        return max((made[-1] for made in self.records().values() if made), default=None)

    def by_last_step(self):
        """Pids, those that are ahead first."""
        records = self.records()
        return sorted((pid for pid in records if records[pid] and alive(pid)),
                      key=lambda pid: -records[pid][-1][STEP])

    def end(self, sig=signal.SIGINT):
        if sig is not None:
            self.process.send_signal(sig)
        self.process.stdout.read()
        code = self.process.wait()
        self.cut_off.cancel()
        self.reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def judge(self):
        judged = subprocess.run([PLIANT, "chaos-check", self.folder, "--samples", str(SAMPLES)],
                                capture_output=True, text=True, check=False)
        shutil.rmtree(self.folder)
        return judged.returncode, judged.stdout


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except (OSError, IndexError):
        return False


class Elastic(unittest.TestCase):
    def job(self, *arguments, **options):
        job = Job(*arguments, **options)
        self.addCleanup(lambda: job.process.poll() is None and job.end(signal.SIGKILL))
        return job

    def finish(self, job, sig=signal.SIGINT, code=None):
        pids = list(job.records())
        ended = job.end(sig)
        if code is not None:
            self.assertEqual(ended, code, "".join(job.lines))
        verdict, said = job.judge()
        self.assertEqual(verdict, 0, said + "".join(job.lines))
        self.assertEqual([pid for pid in pids if alive(pid)], [])

    def kill(self, job, pids):
        before = job.newest()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return before

    def test_an_undisturbed_job_ends_by_itself(self):
        job = self.job(3, ["--max", "3"], ["--steps", "300"])
        self.finish(job, None, 0)

    def test_a_killed_worker_costs_no_step(self):
        job = self.job(4, ["--max", "4"], ["--gradient", "4M"])
        job.await_step(20, 4)
        before = self.kill(job, [job.by_last_step()[-1]])
        job.await_step(before[STEP] + 20, 3)
        self.finish(job)

    def test_half_of_the_members_die_at_once(self):
        job = self.job(4, ["--max", "4"], ["--gradient", "1M", "--operations", "3"])
        job.await_step(20, 4)
        before = self.kill(job, job.by_last_step()[:2])
        job.await_step(before[STEP] + 20, 2)
        self.finish(job)

    def test_all_but_one_die_one_after_the_other(self):
        job = self.job(4, ["--max", "4"], [])
        for members in (4, 3, 2):
            job.await_step(20, members)
            before = self.kill(job, [job.by_last_step()[0]])
            job.await_step(before[STEP] + 10, members - 1)
        self.finish(job)

    def test_over_tcp(self):
        job = self.job(4, ["--max", "4", "--transport", "tcp"], ["--operations", "2"])
        job.await_step(20, 4)
        before = self.kill(job, [job.by_last_step()[1]])
        job.await_step(before[STEP] + 20, 3)
        self.finish(job)

    def test_the_dead_are_replaced(self):
        job = self.job(3, ["--max", "3", "--restart"], ["--state", "8M"])
        job.await_step(20, 3)
        before = self.kill(job, [job.by_last_step()[0]])
        job.await_step(before[STEP] + 1, 2)
        newest = job.newest()
        job.await_step(newest[STEP] + 1, 3)
        self.finish(job)

    def test_growing_by_schedule(self):
        job = self.job(2, ["--max", "4", "--schedule", "2@0,4@50"], ["--compute-ms", "1"])
        job.await_step(20, 2)
        job.await_step(50, 4)
        self.finish(job)

    def test_shrinking_by_schedule(self):
        job = self.job(4, ["--max", "4", "--schedule", "4@0,1@100"], ["--compute-ms", "1"])
        job.await_step(20, 4)
        job.await_step(150, 1)
        self.finish(job)

    def test_below_the_minimum_the_job_waits_for_replacements(self):
        job = self.job(3, ["--min", "3", "--max", "3", "--restart"], [])
        job.await_step(20, 3)
        before = self.kill(job, job.by_last_step()[:2])
        job.await_step(before[STEP] + 20, 3)
        # Nobody went on with fewer: only the step that was open is finished by who is left.
        fewer = {made[STEP] for made in sum(job.records().values(), []) if made[MEMBERS] < 3}
        self.assertLessEqual(len(fewer), 1)
        self.finish(job)
        self.assertTrue(any(re.search("paus", line) for line in job.lines), job.lines)

    def test_a_stopped_worker_is_left_behind_and_learns_it(self):
        job = self.job(3, ["--max", "3", "--heartbeat", "0.2"], ["--gradient", "1M"])
        job.await_step(20, 3)
        stopped = job.by_last_step()[0]
        before = job.newest()
        os.kill(stopped, signal.SIGSTOP)
        job.await_step(before[STEP] + 20, 2)
        os.kill(stopped, signal.SIGCONT)
        deadline = time.monotonic() + PATIENCE_S
        while alive(stopped) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse(alive(stopped))
        job.await_step(job.newest()[STEP] + 20)
        self.finish(job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
