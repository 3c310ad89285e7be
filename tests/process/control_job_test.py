#!/usr/bin/env python3
"""Real jobs and the commands of people: status, resize, drain, events and stop; and jobs whose
coordinator dies while they train."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import unittest

import elastic_job
from elastic_job import PATIENCE_S, alive

BUILD = pathlib.Path(os.environ.get("PLIANT_BUILD_DIR", "build/release")).absolute()
PLIANT = os.environ.get("PLIANT_PROGRAM") or str(BUILD / "pliant")


class Job(elastic_job.Job):
    """A job of a test, and what its people say and find."""

    def __init__(self, test, members, *run_options, command=None):
        self.test = test
        super().__init__(PLIANT, members, ["--job", "train", *run_options], command=command)
        test.addCleanup(self.clean_up)

    def succeed(self, *arguments):
        done = self.ask(*arguments)
        self.test.assertEqual((done.returncode, done.stderr), (0, ""), self.text())
        return done.stdout

    def refuse(self, text, *arguments, **variables):
        done = self.ask(*arguments, **variables)
        self.test.assertEqual((done.returncode, done.stdout), (1, ""), done)
        self.test.assertIn(text, done.stderr)

    def status_now(self):
        """The status, without a second try."""
        return json.loads(self.succeed("status", "--json"))

    def journal(self, coordinator):
        for link in pathlib.Path(f"/proc/{coordinator}/fd").iterdir():
            with contextlib.suppress(OSError):
                path = os.readlink(link)
                if path.endswith("/journal"):
                    return path
        raise AssertionError("the coordinator has no journal open")

    def stop(self):
        """Ends the job and looks for what it left behind."""
        status = self.status_now()
        journal = self.journal(status["coordinator_pid"])
        self.succeed("stop")
        code = self.end(None)
        left = [m["pid"] for m in status["members"] if alive(m["pid"])]
        self.test.assertEqual((left, alive(status["coordinator_pid"])), ([], False))
        self.test.assertFalse(os.path.exists(os.path.dirname(journal)))
        self.test.assertEqual(os.listdir(os.path.join(self.directory, "pliant")), [])
        self.test.assertEqual(self.judge(), "", self.text())
        return code


class Commands(unittest.TestCase):
    def test_a_job_and_its_people(self):
        job = Job(self, 3, "--min", "2", "--max", "4", "--restart")
        status = job.await_members(3)
        self.assertEqual((status["job"], status["state"], status["target"], status["min"],
                          status["max"]), ("train", "running", 3, 2, 4))
        for member in status["members"]:
            self.assertTrue(alive(member["pid"]))
        self.assertIn("job train: running, epoch", job.succeed("status"))
        self.assertIn("0.2#1", job.succeed("status"))

        self.assertEqual(job.succeed("resize", "4"), "the job is to have 4 members\n")
        job.await_members(4)
        for size, why in (("0", "cannot be resized to 0"), ("1", "minimum of 2"),
                          ("5", "maximum of 4")):
            job.refuse(why, "resize", size)
        job.succeed("resize", "2")
        status = job.await_members(2)
        job.await_steps(5)

        job.refuse("minimum of 2", "drain", status["members"][1]["peer"])
        job.succeed("resize", "3")
        status = job.await_members(3)
        leaver = status["members"][1]
        job.succeed("drain", leaver["peer"])
        status = job.await_members(2)
        self.assertNotIn(leaver["peer"], [member["peer"] for member in status["members"]])
        self.assertEqual(status["target"], 2)
        job.refuse("is no member", "drain", "0.9#1")
        job.refuse("no host 'nowhere'", "drain", "nowhere")
        job.refuse("minimum is 2 members", "drain", "localhost")

        self.events(job)
        self.strangers(job)
        job.stop()

    def events(self, job):
        events = [json.loads(line)
                  for line in job.succeed("events", "--no-follow", "--json").splitlines()]
        ids = [event["id"] for event in events]
        self.assertEqual(ids, list(range(1, len(ids) + 1)))
        self.assertLessEqual({"view", "resize", "drain"}, {event["kind"] for event in events})
        later = job.succeed("events", "--no-follow", "--json", "--since", str(ids[-3])).splitlines()
        self.assertEqual([json.loads(line)["id"] for line in later][:2], ids[-2:])

    def strangers(self, job):
        entry = json.loads(next(pathlib.Path(job.directory, "pliant").iterdir()).read_text())
        at = ("--endpoint", entry["endpoint"])
        for command in (["status"], ["resize", "3"], ["stop"]):
            job.refuse("token is missing or wrong", *command, *at, PLIANT_TOKEN="wrong")
        job.refuse("no job 'nosuch' is running", "status", "--job", "nosuch")

    def test_more_than_fits(self):
        job = Job(self, 2, "-H", "127.0.0.1:1,127.0.0.2:2", "--max", "3")
        job.await_members(2)
        job.succeed("drain", "127.0.0.1")
        job.refuse("do not fit into the 2 slots", "resize", "3")
        job.stop()

    def test_a_job_of_fixed_size(self):
        job = Job(self, 2)
        status = job.await_members(2)
        self.assertEqual((status["target"], status["min"], status["max"]), (2, 2, 2))
        job.refuse("the job has a fixed size", "resize", "3")
        job.refuse("the job has a fixed size", "drain", "0.0#1")
        job.succeed("stop")
        self.assertNotEqual(job.end(None), 0)

    def test_top_and_events_follow_to_the_end(self):
        job = Job(self, 2, "--max", "3")
        job.await_members(2)
        followers = [subprocess.Popen([PLIANT, command], stdout=subprocess.PIPE, text=True,
                                      env=job.environment()) for command in ("top", "events")]
        for follower in followers:
            self.addCleanup(follower.stdout.close)
            self.addCleanup(follower.wait)
            self.addCleanup(follower.kill)
            self.assertNotEqual(follower.stdout.readline(), "")
        job.stop()
        for follower in followers:
            follower.stdout.read()
            self.assertEqual(follower.wait(PATIENCE_S), 0)


class CoordinatorDies(unittest.TestCase):
    def kill(self, coordinator):
        os.kill(coordinator, signal.SIGKILL)

    def lose_unheard(self, job, before):
        """The last member dies, and the coordinator before it hears of that; the status once
        somebody else is in the member's place."""
        victim = before["members"][-1]["pid"]
        # A stopped coordinator decides nothing; when it is killed, the news dies with it.
        os.kill(before["coordinator_pid"], signal.SIGSTOP)
        os.kill(victim, signal.SIGKILL)
        while alive(victim):
            time.sleep(0.005)
        self.kill(before["coordinator_pid"])
        after = job.await_status(lambda s: len(s["members"]) == len(before["members"]) and
                                 victim not in [member["pid"] for member in s["members"]])
        survivors = {member["pid"] for member in before["members"]} - {victim}
        self.assertLessEqual(survivors, {member["pid"] for member in after["members"]})
        return after

    def test_training_goes_on(self):
        job = Job(self, 3, "--max", "4", "--restart")
        before = job.await_members(3)
        job.await_steps(3)
        self.kill(before["coordinator_pid"])
        job.await_steps(20)
        after = job.await_status(lambda s: s["coordinator_pid"] != before["coordinator_pid"])
        self.assertEqual(after["epoch"], before["epoch"])
        self.assertEqual([member["pid"] for member in after["members"]],
                         [member["pid"] for member in before["members"]])
        # And it is a coordinator like the one before, for a member that dies above all.
        victim = after["members"][1]["pid"]
        os.kill(victim, signal.SIGKILL)
        healed = job.await_status(lambda s: len(s["members"]) == 3 and
                                  victim not in [member["pid"] for member in s["members"]])
        self.assertGreater(healed["epoch"], after["epoch"])
        job.stop()

    def test_a_wish_that_was_granted_survives(self):
        job = Job(self, 3, "--max", "4", "--restart")
        for size in (4, 2, 4):
            before = job.await_status(lambda s: len(s["members"]) == s["target"])
            job.succeed("resize", str(size))
            self.kill(before["coordinator_pid"])
            after = job.await_members(size)
            self.assertNotEqual(after["coordinator_pid"], before["coordinator_pid"])
        job.await_steps(5)
        job.stop()

    def test_a_worker_dies_meanwhile(self):
        job = Job(self, 3, "--max", "4", "--restart")
        before = job.await_members(3)
        job.await_steps(3)
        self.lose_unheard(job, before)
        job.await_steps(5)
        job.stop()

    def test_while_the_job_ends(self):
        # Workers that do not hear the request are there until the grace is over.
        deaf = ["/bin/sh", "-c", "trap '' TERM; echo up >&2; while :; do sleep 0.1; done"]
        for ask in (lambda job: job.succeed("stop"),
                    lambda job: job.process.send_signal(signal.SIGTERM)):
            job = Job(self, 2, "--max", "3", "--restart", "--grace", "3s", command=lambda _: deaf)
            while job.lines.count("up\n") < 2:
                self.assertIsNone(job.process.poll())
                time.sleep(0.005)
            ask(job)
            before = job.await_status(lambda s: s["state"] == "ending")
            self.kill(before["coordinator_pid"])
            after = job.await_status(lambda s: s["coordinator_pid"] != before["coordinator_pid"])
            self.assertEqual(after["state"], "ending")
            self.assertEqual(job.end(None), 128 + signal.SIGTERM, job.text())
            self.assertEqual(job.lines.count("up\n"), 2)

    def test_a_second_request_to_end_does_not_need_it(self):
        job = Job(self, 2, "--max", "3")
        before = job.await_members(2)
        os.kill(before["coordinator_pid"], signal.SIGSTOP)
        job.process.send_signal(signal.SIGINT)
        job.process.send_signal(signal.SIGTERM)
        self.assertNotEqual(job.end(None), 0)
        pids = [before["coordinator_pid"], *(member["pid"] for member in before["members"])]
        self.assertEqual([pid for pid in pids if alive(pid)], [])

    def test_again_and_again(self):
        job = Job(self, 3, "--max", "4", "--restart")
        job.await_members(3)
        for _ in range(5):
            before = job.status_now()
            self.kill(before["coordinator_pid"])
            after = job.await_status(lambda s: s["coordinator_pid"] != before["coordinator_pid"])
            self.assertEqual(len(after["members"]), 3)
            job.await_steps(3)
        self.assertEqual(after["epoch"], 1)
        job.stop()

    def test_a_crash_loop_ends_the_job(self):
        job = Job(self, 2, "--max", "3")
        pid = 0
        job.await_members(2)
        with contextlib.suppress(AssertionError):
            while job.process.poll() is None:
                pid = job.await_status(lambda s: s["coordinator_pid"] != pid)["coordinator_pid"]
                self.kill(pid)
        self.assertEqual(job.end(None), 1)
        self.assertIn("10 before it within a minute", job.text())

    def test_two_hosts(self):
        job = Job(self, 4, "-H", "127.0.0.1:2,127.0.0.2:3", "--restart")
        before = job.await_members(4)
        self.kill(before["coordinator_pid"])
        job.succeed("resize", "5")
        job.await_members(5)
        job.await_steps(5)
        job.stop()

    def test_hosts_with_agents_of_their_own(self):
        job = Job(self, 4, "-H", "localhost:2,a:3@127.0.0.1", "--address",
                  "127.0.0.1", "--launcher", "env AT={host}", "--restart")
        before = job.await_members(4)
        self.assertEqual({member["host"] for member in before["members"]}, {"localhost", "a"})
        after = self.lose_unheard(job, before)
        job.succeed("resize", "5")
        self.kill(after["coordinator_pid"])
        job.await_members(5)
        job.await_steps(5)
        job.stop()

    def test_a_second_coordinator_is_refused(self):
        job = Job(self, 2, "--max", "3")
        coordinator = job.await_members(2)["coordinator_pid"]
        with socket.create_server(("127.0.0.1", 0)) as listener:
            order = {"listener": listener.fileno(), "token": "x", "name": "train", "min": 1,
                     "max": 3, "journal": job.journal(coordinator),
                     "hosts": [{"name": "localhost", "slots": 3}]}
            second = subprocess.run([PLIANT, "coordinator"], input=json.dumps(order) + "\n",
                                    capture_output=True, text=True, timeout=PATIENCE_S,
                                    pass_fds=[listener.fileno()], check=False)
        self.assertEqual(second.returncode, 3, second.stderr)
        self.assertIn(str(coordinator), second.stderr)
        self.assertEqual(job.status_now()["coordinator_pid"], coordinator)
        job.await_steps(3)
        job.stop()

    def test_without_an_order(self):
        for text in ("", "{}\n", "[]\n", "nonsense\n"):
            done = subprocess.run([PLIANT, "coordinator"], input=text, capture_output=True,
                                  text=True, timeout=PATIENCE_S, check=False)
            self.assertEqual(done.returncode, 3, done)

    def test_nothing_is_left_of_a_killed_launcher(self):
        job = Job(self, 2, "--max", "3")
        status = job.await_members(2)
        journal = job.journal(status["coordinator_pid"])
        job.process.kill()
        job.end(None)
        pids = [status["coordinator_pid"], *(member["pid"] for member in status["members"])]
        deadline = time.monotonic() + PATIENCE_S
        while any(map(alive, pids)) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual([pid for pid in pids if alive(pid)], [])
        self.assertFalse(os.path.exists(os.path.dirname(journal)))

    def test_what_two_kills_leave_behind_is_removed_by_the_next_job(self):
        job = Job(self, 2, "--max", "3")
        status = job.await_members(2)
        folder = os.path.dirname(job.journal(status["coordinator_pid"]))
        # The lock on the folder is the coordinator's, too.
        held = [os.readlink(fd)
                for fd in pathlib.Path(f"/proc/{status['coordinator_pid']}/fd").iterdir()]
        self.assertIn(folder, held)
        # Neither sees the other's end.
        job.process.send_signal(signal.SIGSTOP)
        self.kill(status["coordinator_pid"])
        job.process.kill()
        job.end(None)
        after = Job(self, 2, "--max", "3")
        after.await_members(2)
        self.assertFalse(os.path.exists(folder))
        after.stop()


if __name__ == "__main__":
    unittest.main()
