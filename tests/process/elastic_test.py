#!/usr/bin/env python3
"""Real workers that come, go and die: the training goes on, every commit agrees with a serial
replay, and nothing is left behind."""

import os
import pathlib
import signal
import unittest

import elastic_job
from elastic_job import alive

BUILD = pathlib.Path(os.environ["PLIANT_BUILD_DIR"])
PLIANT = str(BUILD / "pliant")
# Agents of their own on this machine; each is told its host's name.
TWO_HOSTS = ["-H", "a:3@127.0.0.1,b:3@127.0.0.1", "--address", "127.0.0.1", "--launcher",
             "env AT={host}"]


class Elastic(unittest.TestCase):
    def job(self, *arguments, **options):
        job = elastic_job.Job(PLIANT, *arguments, **options)
        self.addCleanup(job.clean_up)
        return job

    def finish(self, job, sig=signal.SIGINT, code=None):
        pids = list(job.records())
        ended = job.end(sig)
        if code is not None:
            self.assertEqual(ended, code, job.text())
        self.assertEqual(job.judge(), "", job.text())
        self.assertEqual([pid for pid in pids if alive(pid)], [])

    def kill(self, job, pids):
        before = job.newest()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return before["step"]

    def await_end_of(self, job, pid):
        job.await_that(lambda: not alive(pid))


class Losses(Elastic):
    def test_an_undisturbed_job_ends_by_itself(self):
        job = self.job(3, ["--max", "3"], ["--steps", "300"])
        self.finish(job, None, 0)

    def test_a_killed_worker_costs_no_step(self):
        job = self.job(4, ["--max", "4"], ["--gradient", "4M"])
        job.await_step(20, 4)
        before = self.kill(job, [job.by_last_step()[-1]])
        job.await_step(before + 20, 3)
        self.finish(job)

    def test_half_of_the_members_die_at_once_rank_0_among_them(self):
        job = self.job(6, ["--max", "6"], ["--gradient", "1M", "--operations", "3"])
        job.await_step(20, 6)
        ranks = [member["pid"] for member in job.await_members(6)["members"]]
        before = self.kill(job, [ranks[0], ranks[3], ranks[5]])
        job.await_step(before + 20, 3)
        self.finish(job)

    def test_all_but_one_die_one_after_the_other(self):
        job = self.job(4, ["--max", "4"], [])
        for members in (4, 3, 2):
            job.await_step(20, members)
            before = self.kill(job, [job.by_last_step()[0]])
            job.await_step(before + 10, members - 1)
        self.finish(job)

    def test_over_tcp(self):
        job = self.job(4, ["--max", "4", "--transport", "tcp"], ["--operations", "2"])
        job.await_step(20, 4)
        before = self.kill(job, [job.by_last_step()[1]])
        job.await_step(before + 20, 3)
        self.finish(job)

    def test_the_dead_are_replaced(self):
        job = self.job(3, ["--max", "3", "--restart"], ["--state", "8M"])
        job.await_step(20, 3)
        before = self.kill(job, [job.by_last_step()[0]])
        job.await_step(before + 1, 2)
        job.await_step(job.newest()["step"] + 1, 3)
        self.finish(job)

    def test_survivors_let_go_of_the_memory_of_the_dead(self):
        job = self.job(3, ["--max", "6"], ["--gradient", "1M"])
        survivor = int(job.await_members(3)["members"][0]["pid"])
        for _ in range(3):
            job.await_step(job.step() + 5, 3)
            victim = next(pid for pid in job.by_last_step() if pid != survivor)
            before = self.kill(job, [victim])
            job.await_step(before + 5, 2)
            job.resize(3)
        # Its own segment and those of two others.
        job.await_that(lambda: self.segments_of(survivor) == 3)
        self.finish(job)

    def test_the_memory_of_a_lost_leader_is_used_until_the_next_has_its_own(self):
        job = self.job(3, ["--max", "3"], ["--gradient", "16M"])
        leader, survivor, _ = (int(member["pid"]) for member in job.await_members(3)["members"])
        job.await_step(5, 3)
        before = self.kill(job, [leader])
        job.await_step(before + 20, 2)
        # Its own segment and that of the other, in the same view.
        job.await_that(lambda: self.segments_of(survivor) == 2)
        self.assertEqual(job.newest()["epoch"], 2)
        self.finish(job)

    def test_of_slow_steps_each_is_told(self):
        job = self.job(2, ["--max", "2"], ["--compute-ms", "150"])
        first = job.await_status(lambda status: status["step"] > 0)["step"]
        self.assertLess(first, 8)
        later = job.await_status(lambda status: status["step"] > first)["step"]
        self.assertLess(later, first + 8)
        self.finish(job)

    def segments_of(self, pid):
        with open(f"/proc/{pid}/maps", encoding="ascii") as maps:
            return sum("memfd:pliant (deleted)" in line for line in maps)

    def test_below_the_minimum_the_job_waits_for_replacements(self):
        job = self.job(3, ["--min", "3", "--max", "3", "--restart"], [])
        job.await_step(20, 3)
        before = self.kill(job, job.by_last_step()[:2])
        job.await_step(before + 20, 3)
        # Nobody went on with fewer: only the step that was open is finished by who is left.
        fewer = {made["step"] for made in sum(job.records().values(), []) if made["members"] < 3}
        self.assertLessEqual(len(fewer), 1)
        self.finish(job)
        self.assertIn("paused", job.text())

    def test_all_but_the_minimum_die_and_then_one_joins(self):
        job = self.job(4, ["--min", "1", "--max", "4"], ["--state", "4M"])
        job.await_step(20, 4)
        before = self.kill(job, job.by_last_step()[1:])
        job.await_step(before + 10, 1)
        job.resize(2)
        job.await_step(job.newest()["step"] + 10, 2)
        job.resize(4)
        job.await_step(job.newest()["step"] + 10, 4)
        self.finish(job)

    def test_a_worker_that_ends_in_the_middle_is_no_failure(self):
        # Orderly, but without a word: the program ends on one member at its 50th step.
        early = ["--steps", "50"]
        job = self.job(4, ["--max", "4"], ["--compute-ms", "1"], command=lambda worker: [
            "/bin/sh", "-c", '[ $RANK = 2 ] && exec "$@" ' + " ".join(early) + '; exec "$@"', "sh",
            *worker])
        job.await_step(100, 3)
        self.finish(job)

    def test_a_stopped_worker_is_left_behind_and_learns_it(self):
        job = self.job(3, ["--max", "3", "--heartbeat", "0.2"], ["--gradient", "1M"])
        job.await_step(20, 3)
        stopped = job.by_last_step()[0]
        before = job.newest()["step"]
        os.kill(stopped, signal.SIGSTOP)
        job.await_step(before + 20, 2)
        os.kill(stopped, signal.SIGCONT)
        self.await_end_of(job, stopped)
        job.await_step(job.newest()["step"] + 20)
        self.finish(job)


class Resizes(Elastic):
    def members_at(self, job, step):
        """With how many members a step was committed; one that is over before anybody looks has
        left its record."""
        return {record["members"] for records in job.records().values() for record in records
                if record["step"] == step}

    def test_growing_by_schedule(self):
        job = self.job(2, ["--max", "4", "--schedule", "2@0,4@50"], ["--compute-ms", "1"])
        job.await_step(50, 4)
        self.assertEqual(self.members_at(job, 20), {2})
        self.finish(job)

    def test_shrinking_by_schedule(self):
        job = self.job(4, ["--max", "4", "--schedule", "4@0,1@100"], ["--compute-ms", "1"])
        job.await_step(150, 1)
        self.assertEqual(self.members_at(job, 20), {4})
        self.finish(job)

    def test_a_storm_of_joins(self):
        job = self.job(1, ["--max", "8"], ["--state", "4M", "--compute-ms", "1"])
        job.await_step(20, 1)
        job.resize(8)
        job.await_step(job.newest()["step"] + 20, 8)
        self.finish(job)

    def test_of_resizes_during_resizes_the_last_wins(self):
        job = self.job(2, ["--max", "8"], ["--state", "4M", "--compute-ms", "1"])
        job.await_step(20, 2)
        for size in (8, 3, 7, 1, 8, 2, 6, 5):
            job.resize(size)
        job.await_status(lambda s: len(s["members"]) == 5 and s["target"] == 5)
        job.await_step(job.newest()["step"] + 20, 5)
        self.assertEqual(len(job.status()["members"]), 5)
        self.finish(job)


class DifferentState(Elastic):
    """One worker registers another state than the rest: it is refused, and they go on."""

    def check(self, option, sentence, newcomer):
        start = 2 if newcomer else 3
        job = self.job(start, ["--max", "3"], ["--compute-ms", "1"], command=lambda worker: [
            "/bin/sh", "-c", f'[ $RANK = 2 ] && exec "$@" {option}; exec "$@"', "sh", *worker])
        if newcomer:
            job.await_step(20, 2)
            job.resize(3)
        job.await_that(lambda: sentence in job.text())
        job.await_step(job.step() + 20, 2)
        self.finish(job)

    def test_size(self):
        self.check("--state 128K", "its state 'ballast' has 131072 bytes, the others' 65536", True)

    def test_name(self):
        self.check("--state-name other", "it lacks state 'ballast'", True)

    def test_type(self):
        self.check("--state-type f32", "its state 'ballast' is f32, the others' u8", True)

    def test_from_the_start(self):
        self.check("--state 128K", "its state 'ballast' has 131072 bytes, the others' 65536", False)


class Hosts(Elastic):
    def test_an_agent_dies_and_its_host_comes_back(self):
        job = self.job(6, [*TWO_HOSTS, "--restart"], ["--compute-ms", "1"])
        before = job.await_members(6)
        job.await_step(20, 6)
        there = [m["pid"] for m in before["members"] if m["host"] == "b"]
        agent = job.agents()["b"]
        os.kill(agent, signal.SIGKILL)
        for pid in there:
            self.await_end_of(job, pid)
        after = job.await_status(lambda s: len(s["members"]) == 6 and
                                 not set(there) & {m["pid"] for m in s["members"]})
        self.assertEqual([m["host"] for m in after["members"]].count("b"), 3)
        self.assertNotIn(job.agents()["b"], (agent, None))
        job.await_step(job.newest()["step"] + 20, 6)
        # Those that stayed are who they were.
        self.assertLessEqual({m["pid"] for m in before["members"] if m["host"] == "a"},
                             {m["pid"] for m in after["members"]})
        self.finish(job)
        self.assertIn("the agent is started again in", job.text())

    def test_the_coordinator_is_away_when_an_agent_dies(self):
        job = self.job(6, [*TWO_HOSTS, "--restart"], ["--compute-ms", "1"])
        before = job.await_members(6)
        job.await_step(20, 6)
        there = [m["pid"] for m in before["members"] if m["host"] == "b"]
        os.kill(before["coordinator_pid"], signal.SIGSTOP)
        os.kill(job.agents()["b"], signal.SIGKILL)
        # Word of the death and of the next agent reach the coordinator together.
        job.await_that(lambda: job.agents().get("b"))
        os.kill(before["coordinator_pid"], signal.SIGCONT)
        job.await_status(lambda s: len(s["members"]) == 6 and
                         not set(there) & {m["pid"] for m in s["members"]})
        job.await_step(job.newest()["step"] + 20, 6)
        self.finish(job)

    def test_a_host_that_was_set_aside_is_done_without(self):
        # Whatever starts on b fails until it is told to stop failing.
        job = self.job(2, ["-H", "a:2@127.0.0.1,b:2@127.0.0.1", "--address", "127.0.0.1",
                           "--launcher", "env AT={host}", "--restart", "--host-failures", "2"],
                       ["--compute-ms", "1"], command=lambda worker: [
                           "/bin/sh", "-c", '[ "$AT" = b ] && exit 3; exec "$@"', "sh", *worker])
        job.await_step(20, 2)
        job.resize(4)
        job.await_that(lambda: "host b is set aside for" in job.text())
        job.await_step(job.newest()["step"] + 20, 2)
        self.finish(job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
