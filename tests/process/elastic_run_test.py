"""`pliant run` of elastic jobs as far as the launcher goes: starting, replacing and ending workers.

Workers are shell scripts that never join; they say that they are ready by writing files.
"""

import os
import re
import shutil
import signal
import tempfile
import unittest

from launched import LIMIT_S, alive, environment, run, start, wait_until


class ElasticRun(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="pliant-elastic-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)

    def run_job(self, *arguments):
        return run("run", *arguments, env=environment(DIR=self.directory))

    def start_job(self, *arguments):
        return start("run", *arguments, env=environment(DIR=self.directory))

    def pids(self):
        found = {}
        for name in os.listdir(self.directory):
            if name.startswith("pid-"):
                with open(os.path.join(self.directory, name)) as file:
                    text = file.read()
                if text.endswith("\n"):
                    found[int(name[4:])] = int(text)
        return found

    def test_workers_know_that_the_job_is_elastic(self):
        done = self.run_job("-n", "2", "--max", "3", "--heartbeat", "0.5", "--schedule", "2@0,3@9",
                            "--", "/bin/sh", "-c",
                            "echo $PLIANT_PEER $RANK $WORLD_SIZE $PLIANT_ELASTIC $PLIANT_HEARTBEAT "
                            "$PLIANT_SCHEDULE; readlink /proc/$$/fd/$PLIANT_LIFE_FD")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(sorted(done.stdout.splitlines()), [
            "[0] /memfd:pliant-life (deleted)", "[0] 0.0#1 0 2 1 0.5 2@0,3@9",
            "[1] /memfd:pliant-life (deleted)", "[1] 0.1#1 1 2 1 0.5 2@0,3@9"])

    def test_static_job_knows_nothing_of_it(self):
        done = self.run_job("-n", "1", "--", "/bin/sh", "-c",
                            "echo ${PLIANT_ELASTIC:-0} $PLIANT_LIFE_FD$PLIANT_SCHEDULE")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "[0] 0\n", ""))

    def test_one_failure_is_survived(self):
        done = self.run_job("-n", "3", "--min", "1", "--", "/bin/sh", "-c",
                            "[ $RANK = 1 ] && { echo $$ > $DIR/pid-1; exit 3; }; "
                            "until [ -s $DIR/pid-1 ] && ! kill -0 $(cat $DIR/pid-1) 2>/dev/null; "
                            "do :; done; exit 0")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stderr,
                         r"^pliant: worker 1 \(host localhost, pid \d+\) exited with code 3\n$")

    def test_failure_of_all_is_the_jobs(self):
        done = self.run_job("-n", "2", "--min", "1", "--", "/bin/sh", "-c", "kill -9 $$")
        self.assertEqual(done.returncode, 137)
        self.assertRegex(done.stderr.splitlines()[-1],
                         r"^pliant: no worker is left: worker \d \(host localhost, pid \d+\) was "
                         r"killed by signal 9 \(Killed\); the job ends$")

    def test_failed_worker_is_replaced_after_a_rest(self):
        done = self.run_job("-n", "1", "--restart", "--", "/bin/sh", "-c",
                            "echo $PLIANT_PEER; [ $RANK = 2 ] || exit 3")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "[0] 0.0#1\n[1] 0.0#2\n[2] 0.0#3\n")
        self.assertEqual(re.findall(r"started again in (.*)", done.stderr), ["500.00 ms", "1.00 s"])

    def test_restarts_are_counted(self):
        done = self.run_job("-n", "1", "--restart=1", "--", "/bin/sh", "-c", "echo $RANK; exit 3")
        self.assertEqual(done.returncode, 3)
        self.assertEqual(done.stdout, "[0] 0\n[1] 1\n")

    def test_program_that_never_comes_up_is_given_up(self):
        done = self.run_job("-n", "1", "--restart", "--", "/bin/sh", "-c", "exit 4")
        self.assertEqual(done.returncode, 4)
        self.assertIn("again and again; the job ends", done.stderr)

    def test_killed_worker_is_replaced_and_an_interrupt_ends_all(self):
        job = self.start_job("-n", "2", "--restart", "--", "/bin/sh", "-c",
                             "echo $$ > $DIR/pid-$RANK; exec sleep 1000")
        wait_until(lambda: len(self.pids()) == 2, "both workers run")
        os.kill(self.pids()[0], signal.SIGKILL)
        wait_until(lambda: len(self.pids()) == 3, "the replacement runs")
        job.send_signal(signal.SIGINT)
        _, error = job.communicate(timeout=LIMIT_S)
        self.assertEqual(job.returncode, 130)
        self.assertIn("worker 0 (host localhost, pid", error)
        self.assertIn("interrupted by signal 2 (Interrupt); the job ends", error)
        for pid in self.pids().values():
            self.assertFalse(alive(pid))

    def test_nothing_is_left_when_the_launcher_is_killed(self):
        job = self.start_job("-n", "2", "--max", "3", "--", "/bin/sh", "-c",
                             "echo $$ > $DIR/pid-$RANK; exec sleep 1000")
        wait_until(lambda: len(self.pids()) == 2, "both workers run")
        job.kill()
        job.communicate(timeout=LIMIT_S)
        for pid in self.pids().values():
            wait_until(lambda pid=pid: not alive(pid), "the workers have ended")

    def test_agents_of_other_hosts_start_workers_too(self):
        done = self.run_job("-H", "localhost:1,far:2@127.0.0.1", "--address", "127.0.0.1",
                            "--launcher", "env AT={host}", "-n", "2", "--restart", "--",
                            "/bin/sh", "-c", "echo $PLIANT_PEER; [ $RANK = 1 ] && exit 3; exit 0")
        self.assertEqual(done.returncode, 0)
        self.assertIn("[1] 1.0#1\n", done.stdout)

    def test_contradictions_are_explained(self):
        for text, arguments in (
                ("--min 4 is more than --max 3", ["-n", "2", "--min", "4", "--max", "3"]),
                ("-n 1 is less than --min 2", ["-n", "1", "--min", "2", "--max", "3"]),
                ("only 2 slots", ["-H", "localhost:2", "--max", "3"]),
                ("'x' is no size and step", ["-n", "2", "--schedule", "x"]),
                ("too short", ["-n", "2", "--max", "3", "--heartbeat", "10ms"]),
                ("--heartbeat is for elastic jobs", ["-n", "2", "--heartbeat", "1s"]),
                ("how many workers", ["--min", "1"])):
            done = self.run_job(*arguments, "--", "/bin/true")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
