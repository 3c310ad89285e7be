#!/usr/bin/env python3
"""Real workers that keep their models together in three ways, while they come, go and die: what
they wrote down is replayed by the written rules (docs/TRAINING.md), step by step."""

import itertools
import json
import os
import pathlib
import signal
import struct
import unittest

import elastic_job
from elastic_job import alive

BUILD = pathlib.Path(os.environ["PLIANT_BUILD_DIR"])
PLIANT = str(BUILD / "pliant")
WORKER = str(BUILD / "tests" / "process" / "synchroniser_worker")
SYNCHRONOUS, MODEL, PAIR = "synchronous", "model_averaging", "pair_averaging"
RATE, MOMENTUM = 0.05, 0.5  # of the worker
SEED, ALPHA = 11, 0.25
TOLERANCE = 1e-12


def read_lines(path):
    """The whole lines of a record; a killed worker may have left half a line."""
    text = path.read_text(encoding="ascii")
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


class Job(elastic_job.Job):
    """A job of synchroniser workers; its records are JSON lines, a file for each peer."""

    def __init__(self, members, run_options, *worker_options, command=lambda worker: worker):
        def worker(chaos):
            folder = chaos[chaos.index("--records") + 1]
            return command([WORKER, "--records", folder, "--seed", str(SEED), "--alpha", str(ALPHA),
                            *map(str, worker_options)])
        super().__init__(PLIANT, members, run_options, command=worker)

    def records(self):
        return {path.name: read_lines(path) for path in pathlib.Path(self.folder).iterdir()}

    def commits(self):
        """The last of each peer."""
        found = {}
        for peer, lines in self.records().items():
            made = [line for line in lines if line["event"] == "commit"]
            if made:
                found[peer] = made[-1]
        return found

    def newest(self):
        return max(self.commits().values(), key=lambda line: line["step"], default=None)

    def await_step(self, step, members=None):
        return self.await_that(lambda: next(
            (line for line in self.commits().values()
             if line["step"] >= step and members in (None, line["members"])), None))

    def pids(self):
        """Of the members, by rank."""
        status = self.await_status(lambda s: s["members"])
        return [member["pid"] for member in status["members"]]


class Step:
    """What all peers wrote down about one step."""

    def __init__(self):
        self.begins, self.handed_in, self.commits = {}, {}, {}
        self.last_words = {}  # commits of peers that were gone before the others had committed

    def set_aside(self, later):
        """Who commits and is gone at once has no part in the next view, though it may have begun
        the next step: the others may have to finish this one without it. What those have in common
        counts that have committed a later step."""
        stays = self.commits.keys() & later
        if not stays and self.commits:
            # The last step of the job: whoever is left finishes it with fewer.
            fewest = min(commit["contributors"] for commit in self.commits.values())
            stays = {p for p, commit in self.commits.items() if commit["contributors"] == fewest}
        counts = {self.commits[peer]["contributors"] for peer in stays}
        for peer in self.commits.keys() - stays:
            if self.commits[peer]["contributors"] not in counts:
                self.last_words[peer] = self.commits.pop(peer)

    @property
    def way(self):
        ways = {line["way"] for line in self.begins.values()}
        assert len(ways) == 1, ways
        return ways.pop()


def steps_of(records):
    steps = {}
    places = {"begin": "begins", "handed_in": "handed_in", "commit": "commits"}
    for peer, lines in records.items():
        for line in lines:
            step = steps.setdefault(line["step"], Step())
            getattr(step, places[line["event"]])[peer] = line
    later = set()
    for number in sorted(steps, reverse=True):
        committed = set(steps[number].commits)
        steps[number].set_aside(later)
        later |= committed
    return steps


def applied(commit):
    """Model and momentum after the optimizer, which has the bits of the worker's: f64 both."""
    momentum = [MOMENTUM * m + g for m, g in zip(commit["m"], commit["gradients"])]
    return [v - RATE * m for v, m in zip(commit["v"], momentum)], momentum


def spread(value):
    mask = 2 ** 64 - 1
    value = (value + 0x9e3779b97f4a7c15) & mask
    value = ((value ^ (value >> 30)) * 0xbf58476d1ce4e5b9) & mask
    value = ((value ^ (value >> 27)) * 0x94d049bb133111eb) & mask
    return value ^ (value >> 31)


def packed(peer):
    host, slot = peer.split("#")[0].split(".")
    return int(host) << 32 | int(slot) << 16 | int(peer.split("#")[1])


def partner(step, peer, view):
    """The documented choice, written down once more."""
    others = [member for member in view if member != peer]
    drawn = spread(spread(spread(SEED) ^ step) ^ packed(peer))
    return others[drawn % len(others)] if others else None


def close(values, wanted):
    return all(abs(v - w) <= TOLERANCE * max(1, abs(w)) for v, w in zip(values, wanted))


def f32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def bf16(value):
    """The nearest, ties to even."""
    bits, = struct.unpack("I", struct.pack("f", value))
    rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16 << 16
    return struct.unpack("f", struct.pack("I", rounded))[0]


def mean(rows, over):
    return [sum(column) / over for column in zip(*rows)]


class Rules(unittest.TestCase):
    """Replays records."""

    def replay(self, records, sampled=True):
        """Every step of every peer follows from the step before by the rule of its way."""
        steps = steps_of(records)
        last = max(number for number, step in steps.items() if step.commits)
        before = None
        for number in range(1, last + 1):
            step = steps[number]
            self.check_begins(number, step, before)
            self.check_commits(number, step, before, sampled)
            if step.way == PAIR:
                self.check_pulls(number, step, steps)
            before = step
        return steps

    def check_begins(self, number, step, before):
        """Who was there goes on with what it had; a newcomer has all of one member's."""
        old = {}
        for peer, begin in step.begins.items():
            has = (begin["v"], begin["m"])
            if before and peer in before.commits:
                self.assertEqual(has, applied(before.commits[peer]), f"{peer} in step {number}")
                old[peer] = has
        if not before:
            self.assertEqual(len({str(begin["v"]) for begin in step.begins.values()}), 1)
            return
        for peer in step.begins.keys() - old.keys():
            has = (step.begins[peer]["v"], step.begins[peer]["m"])
            # One that was killed before it could write its commit down may have given it.
            if not before.begins.keys() - before.commits.keys():
                self.assertIn(has, list(old.values()), f"{peer} joins in step {number}")

    def contributors(self, step, given, fits):
        """The peers whose inputs are in a step: those that committed it, and as many as are needed
        of those that died after they had given theirs."""
        count = {commit["contributors"] for commit in step.commits.values()}
        self.assertEqual(len(count), 1, step.commits)
        missing = count.pop() - len(step.commits)
        self.assertGreaterEqual(missing, 0)
        dead = given.keys() - step.commits.keys()
        for counted in itertools.combinations(sorted(dead), missing):
            peers = [*step.commits, *counted]
            if fits(peers):
                return peers
        self.fail(f"no members explain the step: {step.commits}, {dead}")

    def check_commits(self, number, step, before, sampled):
        commits = step.commits.values()
        if step.way == SYNCHRONOUS:
            self.assertEqual(len({str(commit["gradients"]) for commit in commits}), 1)
            over = next(iter(commits))["contributed" if sampled else "contributors"]
            result = next(iter(commits))["gradients"]
            peers = self.contributors(step, step.handed_in, lambda peers: close(result, mean(
                [step.handed_in[peer]["gradients"] for peer in peers], over)))
            if before and before.way != SYNCHRONOUS:
                wanted = mean([step.begins[peer]["v"] for peer in peers], len(peers))
                momentum = mean([step.begins[peer]["m"] for peer in peers], len(peers))
                self.assertEqual(len({str((c["v"], c["m"], c["sum"])) for c in commits}), 1, number)
                for commit in commits:
                    self.assertTrue(close(commit["v"], wanted), f"step {number}")
                    self.assertTrue(close(commit["m"], momentum), f"step {number}")
                return
        else:
            for peer, commit in step.commits.items():
                given = step.handed_in[peer]
                over = max(1, given["samples"]) if sampled else 1
                self.assertEqual(commit["gradients"], [g / over for g in given["gradients"]])
        if step.way == MODEL:
            def rule(peer, peers):
                average = mean([step.begins[each]["v"] for each in peers], len(peers))
                return [(1 - ALPHA) * v + ALPHA * a
                        for v, a in zip(step.begins[peer]["v"], average)]
            # Without samples that must not be lost, a model counts from the begin of the step on.
            given = step.handed_in if sampled else step.begins
            self.contributors(step, given, lambda peers: all(
                close(commit["v"], rule(peer, peers)) for peer, commit in step.commits.items()))
        elif step.way == SYNCHRONOUS:
            for peer, commit in step.commits.items():
                self.assertEqual(commit["v"], step.begins[peer]["v"])

    def check_pulls(self, number, step, steps):
        since = number
        while since > 1 and steps[since - 1].way == PAIR:
            since -= 1
        for peer, commit in step.commits.items():
            model = step.begins[peer]["v"]
            if commit["pull"] is None:
                self.assertEqual(commit["v"], model, f"{peer} in step {number}")
                continue
            other, version = commit["pull"]
            self.assertEqual(other, partner(number, peer, step.begins[peer]["view"]))
            self.assertTrue(since <= version <= number, (since, version, number))
            made = {**steps[version].commits, **steps[version].last_words}
            published, _ = applied(made[other])
            self.assertEqual(commit["v"], [0.5 * v + 0.5 * p for v, p in zip(model, published)],
                             f"{peer} in step {number}")

    def check_samples(self, steps, samples):
        """No sample is taken again before all others were."""
        taken = [0] * samples
        for number in sorted(steps):
            commits = steps[number].commits.values()
            if not commits:
                continue
            self.assertEqual(len({str(commit["all_samples"]) for commit in commits}), 1)
            for sample in next(iter(commits))["all_samples"]:
                taken[sample] += 1
            self.assertLessEqual(max(taken) - min(taken), 1, f"step {number}")

    def check_serial(self, steps):
        """One process with the same samples in the same steps has the same model."""
        first = next(iter(steps[1].begins.values()))
        model, momentum = first["v"], first["m"]
        for number in sorted(steps):
            if not steps[number].commits:
                break
            for peer, begin in steps[number].begins.items():
                self.assertTrue(close(begin["v"], model), f"{peer} in step {number}")
            samples = next(iter(steps[number].commits.values()))["all_samples"]
            gradients = [sum(v - (s * 31 + i * 17) % 97 / 97.0 for s in samples) / len(samples)
                         for i, v in enumerate(model)]
            momentum = [MOMENTUM * m + g for m, g in zip(momentum, gradients)]
            model = [v - RATE * m for v, m in zip(model, momentum)]


class Synchronisers(Rules):
    def job(self, *arguments, **options):
        job = Job(*arguments, **options)
        self.addCleanup(job.clean_up)
        return job

    def kill(self, job, rank):
        os.kill(job.pids()[rank], signal.SIGKILL)

    def finish(self, job, sig=None):
        code = job.end(sig)
        if sig is None:
            self.assertEqual(code, 0, job.text())
        return job.records()

    def scripted(self, *worker_options):
        """3, 4, 2, 3, 1 and 2 members by resizes and losses."""
        job = self.job(3, ["--min", "1", "--max", "4"], "--compute-ms", 2, *worker_options)
        job.await_step(15, 3)
        job.resize(4)
        job.await_step(30, 4)
        self.kill(job, 0)
        job.await_step(job.step() + 10, 3)
        self.kill(job, 2)
        job.await_step(job.step() + 10, 2)
        job.resize(3)
        job.await_step(job.step() + 10, 3)
        job.resize(1)
        job.await_step(job.step() + 5, 1)
        job.resize(2)
        job.await_step(job.step() + 5, 2)
        return self.finish(job, signal.SIGINT)


class Schedules(Synchronisers):
    SAMPLES = ["--samples", 240, "--batch", 12]

    def test_synchronous(self):
        steps = self.replay(self.scripted("--way", SYNCHRONOUS, *self.SAMPLES, "--constant", "yes"))
        self.check_samples(steps, 240)
        self.check_serial(steps)

    def test_model_averaging(self):
        steps = self.replay(self.scripted("--way", MODEL, *self.SAMPLES))
        self.check_samples(steps, 240)

    def test_model_averaging_with_a_constant_batch(self):
        steps = self.replay(self.scripted("--way", MODEL, *self.SAMPLES, "--constant", "yes"))
        self.check_samples(steps, 240)

    def test_pair_averaging(self):
        steps = self.replay(self.scripted("--way", PAIR, *self.SAMPLES))
        self.check_samples(steps, 240)
        pulls = sum(c["pull"] is not None for s in steps.values() for c in s.commits.values())
        self.assertGreater(pulls, 100)

    def test_without_a_sampler(self):
        for way in (SYNCHRONOUS, MODEL, PAIR):
            with self.subTest(way):
                job = self.job(3, ["--min", "1", "--max", "3"], "--way", way, "--compute-ms", 1,
                               "--share", "yes")
                job.await_step(10, 3)
                self.kill(job, 1)
                job.await_step(job.step() + 10, 2)
                self.replay(self.finish(job, signal.SIGINT), sampled=False)


class Switches(Synchronisers):
    def test_pair_synchronous_averaging_and_back(self):
        ways = [SYNCHRONOUS, MODEL, SYNCHRONOUS, PAIR]
        switches = ",".join(f"{20 * i}:{ways[i % 4 - 1]}" for i in range(1, 40))
        records = self.scripted("--way", PAIR, "--switch", switches, "--samples", 240, "--batch",
                                12, "--constant", "yes")
        steps = self.replay(records)
        self.check_samples(steps, 240)
        self.assertEqual([steps[n].way for n in (19, 20, 39, 40, 59, 60, 79, 80)],
                         [PAIR, *[SYNCHRONOUS] * 2, *[MODEL] * 2, *[SYNCHRONOUS] * 2, PAIR])
        self.check_equal(steps)

    def check_equal(self, steps):
        """Models and momentum, after each step of the synchronous way."""
        for number, step in steps.items():
            if step.way == SYNCHRONOUS and step.commits:
                after = {str(applied(commit)) for commit in step.commits.values()}
                self.assertEqual(len(after), 1, f"step {number}")

    def test_losses_and_resizes_in_the_midst_of_switches(self):
        ways = [SYNCHRONOUS, PAIR, SYNCHRONOUS, MODEL]
        switches = ",".join(f"{3 * i}:{ways[i % 4]}" for i in range(1, 300))
        job = self.job(4, ["--min", "1", "--max", "8", "--restart"], "--way", MODEL, "--switch",
                       switches, "--compute-ms", 2, "--samples", 240, "--batch", 16)
        for size in (6, 3, 8, 2, 5):
            job.await_step(job.step() + 6)
            self.kill(job, job.step() % 2)
            job.resize(size)
        job.await_step(job.step() + 20)
        steps = self.replay(self.finish(job, signal.SIGINT))
        self.check_samples(steps, 240)
        self.check_equal(steps)


class Compressions(Synchronisers):
    PARAMETERS = 5000

    def train(self, compression, *worker_options):
        """With the whole dataset in each step, so that it converges to one point; members join
        and die. The last commit, and what a member sent in a step while all were there."""
        job = self.job(3, ["--min", "1", "--max", "4"], "--compression", compression, "--samples",
                       96, "--batch", 96, "--parameters", self.PARAMETERS, "--varied", "yes",
                       "--type", "f32", "--constant", "yes", *worker_options)
        job.await_step(10, 3)
        job.resize(4)
        sent = job.await_step(job.step() + 10, 4)["sent"]
        self.kill(job, 1)
        job.await_step(job.step() + 10, 3)
        self.kill(job, 0)
        last = job.await_step(job.step() + 150, 2)
        steps = steps_of(self.finish(job, signal.SIGINT))
        for number, step in steps.items():
            sums = {commit["sum"] for commit in step.commits.values()}
            self.assertLessEqual(len(sums), 1, f"the models differ in step {number}")
        return last, sent

    def test_they_converge_like_no_compression(self):
        blocks = sum(-(-part // 1024) for part in (self.PARAMETERS // 3 + 1,
                                                   self.PARAMETERS - self.PARAMETERS // 3 - 1))
        for name, size, error in (("none", 4 * self.PARAMETERS, 1e-5),
                                  ("bf16", 2 * self.PARAMETERS, 1e-4),
                                  ("int8", self.PARAMETERS + blocks, 1e-3)):
            with self.subTest(name):
                last, sent = self.train(name)
                self.assertEqual(sent, size)
                self.assertLess(last["error"], error)


    def test_what_int8_cannot_send_comes_later(self):
        # Without error feedback quiet elements stay where they began, 0.5 away.
        last, _ = self.train("int8", "--loud", "yes")
        self.assertLess(last["error"], 0.15)

    def test_bf16_step_by_step(self):
        job = self.job(3, [], "--compression", "bf16", "--samples", 96, "--batch", 24, "--type",
                       "f32", "--steps", 60)
        steps = steps_of(self.finish(job))
        view = steps[1].begins["0.0#1"]["view"]
        residual = {peer: [0.0] * 8 for peer in view}
        for number in range(1, 61):
            step = steps[number]
            sums = [0.0] * 8
            for peer in view:
                given = step.handed_in[peer]["gradients"]
                wanted = [f32(g + r) for g, r in zip(given, residual[peer])]
                sent = list(map(bf16, wanted))
                residual[peer] = [f32(w - s) for w, s in zip(wanted, sent)]
                sums = [f32(total + s) for total, s in zip(sums, sent)]
            for peer in view:
                self.assertEqual(step.commits[peer]["gradients"], [bf16(f32(s / 24)) for s in sums],
                                 f"step {number}")


class Models(Synchronisers):
    def test_a_pulled_model_is_never_torn(self):
        job = self.job(3, ["--min", "1", "--max", "4"], "--way", PAIR, "--parameters", 300000,
                       "--type", "f32")
        job.await_step(10, 3)
        job.resize(4)
        job.await_step(20, 4)
        self.kill(job, 1)
        job.await_step(job.step() + 20, 3)
        records = self.finish(job, signal.SIGINT)
        pulled = [line for lines in records.values() for line in lines
                  if line["event"] == "commit" and line["pull"]]
        self.assertGreater(len(pulled), 60)
        self.assertEqual([line for line in pulled if line["v"][1] != 1], [])

    def test_over_tcp(self):
        job = self.job(3, ["--max", "3", "--transport", "tcp"], "--way", PAIR, "--steps", 30,
                       "--samples", 240, "--batch", 12)
        self.replay(self.finish(job))

    def test_a_silent_partner_does_not_hold_a_pull_up(self):
        job = self.job(3, ["--min", "1", "--max", "3", "--heartbeat", "0.2"], "--way", PAIR,
                       "--compute-ms", 5)
        job.await_step(10, 3)
        stopped = job.pids()[1]
        os.kill(stopped, signal.SIGSTOP)
        job.await_step(job.step() + 10, 2)
        os.kill(stopped, signal.SIGCONT)
        job.await_that(lambda: not alive(stopped))
        self.replay(self.finish(job, signal.SIGINT), sampled=False)


class Refusals(Synchronisers):
    """One worker makes another synchroniser than the rest: it is refused, and they go on."""

    def check(self, option, sentence, *worker_options):
        job = self.job(2, ["--max", "3"], "--compute-ms", 1, *worker_options, command=lambda w: [
            "/bin/sh", "-c", f'[ $RANK = 2 ] && exec "$@" {option}; exec "$@"', "sh", *w])
        job.await_step(10, 2)
        job.resize(3)
        job.await_that(lambda: sentence in job.text())
        job.await_step(job.step() + 10, 2)
        self.finish(job, signal.SIGINT)

    def test_kind(self):
        self.check(f"--way {MODEL}",
                   "its state 'first' is of kind own, the others' of kind equal")

    def test_size_of_a_bucket(self):
        self.check("--parameters 11", "its state 'first' has 32 bytes, the others' 24")

    def test_compression(self):
        self.check("--compression bf16 --type f32",
                   "it lacks state 'pliant/synchroniser: buckets with gradients 2, compression "
                   "none'", "--type", "f32")

    def test_type_of_a_bucket(self):
        self.check("--parameters 17 --type f32", "its state 'first' is f32, the others' f64")


if __name__ == "__main__":
    unittest.main(verbosity=2)
