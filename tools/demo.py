#!/usr/bin/env python3
"""Shows what elastic training is: a small GPT learns this repository's documents while its job
grows, loses a worker to SIGKILL and shrinks; then the same training undisturbed, to compare.

    tools/demo.py [--quick] [--build DIR] [--out DIR]

`make demo` builds what it needs and runs it. Leaves the curves (loss.svg), all figures
(summary.json) and the logs of both runs in DIR, build/demo by default. Exit code 0 if every
event happened, no step was lost and the two curves agree.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from loss_plot import picture  # noqa: E402

SOURCE = pathlib.Path(__file__).resolve().parent.parent
TEXTS = ["docs", "README.md", "CONTRIBUTING.md"]
RUN_LIMIT_S = 600  # only ends a run that hangs
# What happens, as a share of the steps: each waits for the one before it to be complete.
GROW_AT, KILL_AT, SHRINK_AT = 0.15, 0.40, 0.65
# Two runs sum the same numbers in another order, and each step builds on the last.
LOSS_TOLERANCE = 0.02


class DemoError(Exception):
    """One sentence for people."""


class Display:
    """A line that is redrawn on a terminal; elsewhere a line now and then."""

    def __init__(self, steps, stream=sys.stdout):
        self.stream = stream
        self.live = stream.isatty()
        self.every = max(1, steps // 8)
        self.shown = 0  # columns of the live line

    def progress(self, name, row):
        words = (f"{name:12} step {row['step']:4}  loss {row['loss']:.3f}  "
                 f"{row['members']} workers  {row['tokens_per_s']:7,.0f} tokens/s")
        if self.live:
            self.stream.write("\r" + words.ljust(self.shown))
            self.shown = len(words)
            self.stream.flush()
        elif row["step"] % self.every == 0:
            self.say(words)

    def say(self, words=""):
        if self.live and self.shown:
            self.stream.write("\r" + " " * self.shown + "\r")
            self.shown = 0
        self.stream.write(words + "\n")
        self.stream.flush()


class Log:
    """The lines of a run's log, as they come. Of a step that several members wrote, the first."""

    def __init__(self, path):
        self.path = path
        self.offset = 0
        self.rest = ""
        self.rows = {}

    def read(self):
        """The steps that are new, in order."""
        if not self.path.exists():
            return []
        with open(self.path, encoding="utf-8") as file:
            file.seek(self.offset)
            data = self.rest + file.read()
            self.offset = file.tell()
        *lines, self.rest = data.split("\n")
        new = []
        for row in map(json.loads, lines):
            if row["step"] not in self.rows:
                self.rows[row["step"]] = row
                new.append(row)
        return sorted(new, key=lambda row: row["step"])

    def newest(self):
        return self.rows[max(self.rows)] if self.rows else None


class Job:
    """`pliant run` with the training program, and its end whatever happens."""

    def __init__(self, demo, name, run_options, program_options=()):
        self.demo = demo
        self.name = f"demo-{name}-{os.getpid()}"
        self.log = Log(demo.out / f"{name}.jsonl")
        self.errors = open(demo.out / f"{name}.txt", "w+", encoding="utf-8")
        command = [demo.pliant, "run", *run_options, "--job", self.name, "--no-prefix", "--",
                   demo.program, *demo.arguments, *program_options, "--log", self.log.path]
        # A group of its own: Ctrl-C is for us, and we end it in order.
        self.process = subprocess.Popen(list(map(str, command)), stdout=self.errors,
                                        stderr=self.errors, stdin=subprocess.DEVNULL,
                                        cwd=SOURCE, start_new_session=True)
        self.deadline = time.monotonic() + RUN_LIMIT_S

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.errors.close()

    def said(self):
        self.errors.flush()
        return pathlib.Path(self.errors.name).read_text(encoding="utf-8").strip()

    def ask(self, *words):
        """What a command prints about this job; None if the job does not answer (any more)."""
        done = subprocess.run([str(self.demo.pliant), *words, "--job", self.name],
                              capture_output=True, text=True, check=False, timeout=60)
        return done.stdout if done.returncode == 0 else None

    def follow(self, on_step):
        """Calls on_step with each step's row until the job has ended well."""
        while True:
            ended = self.process.poll() is not None
            for row in self.log.read():
                on_step(row)
            if ended:
                break
            if time.monotonic() > self.deadline:
                raise DemoError(f"the run hangs at {self.log.newest()}; it said: {self.said()}")
            time.sleep(0.02)
        if self.process.returncode != 0:
            raise DemoError(f"the run ended with {self.process.returncode}: {self.said()}")


class Events:
    """What the job says about itself (`pliant events`), read by a thread while it runs."""

    def __init__(self, job):
        self.items = []
        self.process = subprocess.Popen(
            [str(job.demo.pliant), "events", "--json", "--job", job.name], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        for words in self.process.stdout:
            self.items.append(json.loads(words))

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        if error:
            self.process.terminate()  # the job is still to be ended
        elif self.process.poll() is None:
            try:
                self.process.wait(5)  # it ends with the job
            except subprocess.TimeoutExpired:
                self.process.terminate()
        self.process.wait()
        self.thread.join()
        self.process.stdout.close()

    def costs_of(self, epochs):
        """What the changes to these views cost: of each, the longest that any report tells."""
        costs = {}
        for part in ("agree", "redo", "transfer"):
            costs[f"{part}_ms"] = sum(
                max((item["details"][f"{part}_ns"] for item in self.items
                     if item["kind"] == "recovered" and item["details"]["epoch"] == epoch),
                    default=0) / 1e6 for epoch in epochs)
        return costs

    def has_recovered(self, epochs):
        recovered = {item["details"]["epoch"] for item in self.items
                     if item["kind"] == "recovered"}
        return bool(epochs) and recovered.issuperset(epochs)

    def views_after(self, time_ms, size):
        """The numbers of the views from then on up to the first of this size: workers that start
        together may join one by one."""
        found = []
        for item in self.items:
            if item["kind"] == "view" and item["time_ms"] >= time_ms:
                found.append(item["details"]["epoch"])
                if item["details"]["size"] == size:
                    break
        return found

    def loss_after(self, time_ms):
        for item in self.items:
            if item["kind"] == "loss" and item["time_ms"] >= int(time_ms):
                return item["time_ms"]
        return None


class Script:
    """What the demo does to its job: grow, kill, shrink; one after the other."""

    def __init__(self, demo, job, events):
        self.job, self.events, self.demo = job, events, demo
        steps = demo.steps
        self.plan = [(int(GROW_AT * steps), "grow", 4), (int(KILL_AT * steps), "kill", 3),
                     (int(SHRINK_AT * steps), "shrink", 2)]
        self.done = []
        self.open = None  # what has been asked for and not yet happened

    def on_step(self, row):
        if self.done:
            self.tell(self.done[-1], row)
        if self.open:
            self.look_for_end(row)
        elif self.plan and row["step"] >= self.plan[0][0]:
            self.begin(*self.plan.pop(0)[1:], row)

    def begin(self, kind, size, row):
        entry = {"kind": kind, "size": size, "asked_at_step": row["step"],
                 "time_ms": time.time() * 1000}
        if kind == "kill":
            status = self.job.ask("status", "--json")
            if status is None:
                return
            member = json.loads(status)["members"][1]
            entry["pid"] = member["pid"]
            self.demo.display.say(f"  kill -9 of worker {member['rank']} (pid {member['pid']})")
            entry["time_ms"] = time.time() * 1000
            os.kill(member["pid"], signal.SIGKILL)
        else:
            self.demo.display.say(f"  pliant resize {size}")
            if self.job.ask("resize", str(size)) is None:
                raise DemoError(f"the job could not be resized; it said: {self.job.said()}")
        self.open = entry

    def look_for_end(self, row):
        if row["members"] != self.open["size"]:
            return
        self.open["step"] = row["step"]
        self.done.append(self.open)
        self.open = None

    def tell(self, entry, row):
        """Says what a change cost, once the job has told it; after some steps without that."""
        if entry.get("told") or (not self.add_costs(entry) and row["step"] < entry["step"] + 5):
            return
        entry["told"] = True
        pause = f", after a pause of {entry['pause_ms']:.1f} ms" if entry["costs_known"] else ""
        self.demo.display.say(f"  {entry['size']} workers from step {entry['step']} on{pause}")

    def add_costs(self, entry):
        """What the events tell of a change so far. True if that is all of it."""
        entry["epochs"] = self.events.views_after(int(entry["time_ms"]), entry["size"])
        entry.update(self.events.costs_of(entry["epochs"]))
        noticed = self.events.loss_after(entry["time_ms"])
        killed = entry["kind"] == "kill"
        entry["detect_ms"] = max(0.0, noticed - entry["time_ms"]) if killed and noticed else 0.0
        entry["pause_ms"] = sum(entry[f"{part}_ms"] for part in PAUSE_PARTS[entry["kind"]])
        entry["costs_known"] = self.events.has_recovered(entry["epochs"])
        return entry["costs_known"]

    def is_over(self):
        return not self.plan and not self.open

    def complete(self):
        """Adds what the events tell, once the job is over."""
        if not self.is_over():
            missing = self.open["kind"] if self.open else self.plan[0][1]
            raise DemoError(f"the training ended before its event '{missing}' was over: this "
                            "machine is slow to start workers; give more --steps")
        for entry in self.done:
            self.add_costs(entry)


# Where nobody was lost nothing is redone: the next commit is that of the next step.
PAUSE_PARTS = {"grow": ("agree", "transfer"), "kill": ("detect", "agree", "redo"),
               "shrink": ("agree", "transfer")}
WORDS = {"grow": "2 workers join", "kill": "SIGKILL of a worker", "shrink": "one worker leaves"}


class Demo:
    """Both runs and what is made of them."""

    def __init__(self, options):
        build = pathlib.Path(options.build).resolve()
        self.pliant, self.program = build / "pliant", build / "train" / "gpt"
        for program in (self.pliant, self.program):
            if not program.exists():
                raise DemoError(f"{program} is missing; `make demo` builds it")
        self.out = pathlib.Path(options.out).resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        for old in ("elastic.jsonl", "undisturbed.jsonl", "loss.svg", "summary.json",
                    "hurry"):
            (self.out / old).unlink(missing_ok=True)
        self.steps = options.steps or (120 if options.quick else 240)
        # Steps of a tiny model would be over before its job has changed.
        self.hurry = self.out / "hurry"
        self.elastic_options = ["--slow-until", self.hurry] if options.quick else []
        model = (["--layers", "1", "--width", "16", "--heads", "2", "--block", "16", "--batch", "8"]
                 if options.quick else [])
        self.arguments = [*TEXTS, "--steps", self.steps, "--report", 0, "--seed", options.seed,
                          *model]
        self.display = Display(self.steps)
        self.began = time.monotonic()

    def run(self):
        say = self.display.say
        say("A small GPT learns the documents of this repository: first while its job changes,")
        say("then the same training undisturbed.")
        elastic, done = self.run_elastic()
        undisturbed = self.run_undisturbed()
        summary = self.summarise(elastic, undisturbed, done)
        self.draw(elastic, undisturbed, done)
        (self.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        self.show(summary)
        return summary["steps_lost"] == 0 and summary["loss_difference"] <= LOSS_TOLERANCE

    def run_elastic(self):
        run_options = ["-n", "2", "--min", "1", "--max", "4"]
        with Job(self, "elastic", run_options, self.elastic_options) as job:
            while job.ask("status") is None:
                if job.process.poll() is not None:
                    raise DemoError(f"the job did not start: {job.said()}")
            with Events(job) as events:
                script = Script(self, job, events)

                def on_step(row):
                    self.display.progress("elastic", row)
                    script.on_step(row)
                    if script.is_over() and self.elastic_options:
                        self.hurry.touch()
                job.follow(on_step)
            script.complete()
            return job.log.rows, script.done

    def run_undisturbed(self):
        with Job(self, "undisturbed", ["-n", "2"]) as job:
            job.follow(lambda row: self.display.progress("undisturbed", row))
            return job.log.rows

    def summarise(self, elastic, undisturbed, done):
        steps = range(1, self.steps + 1)
        missing = [step for step in steps if step not in elastic]
        batch = undisturbed[1]["samples"]
        short = [step for step in steps if step in elastic and elastic[step]["samples"] != batch
                 and undisturbed[step]["samples"] == batch]
        both = [step for step in steps if step in elastic and step in undisturbed]
        return {
            "steps": self.steps,
            "steps_lost": len(missing) + len(short),
            "first_loss": elastic[1]["loss"], "last_loss": elastic[max(elastic)]["loss"],
            "last_loss_undisturbed": undisturbed[max(undisturbed)]["loss"],
            "loss_difference": max(abs(elastic[step]["loss"] - undisturbed[step]["loss"])
                                   for step in both),
            "seconds": time.monotonic() - self.began,
            "events": done,
        }

    def draw(self, elastic, undisturbed, done):
        def rows(found):
            return [(step, found[step]["loss"], found[step]["members"]) for step in sorted(found)]
        events = [(entry["step"], "loss" if entry["kind"] == "kill" else "resize",
                   f"{WORDS[entry['kind']]}: {entry['pause_ms']:.1f} ms") for entry in done]
        title = "Loss of a small GPT while its workers join, die and leave"
        (self.out / "loss.svg").write_text(
            picture(title, ("elastic run", rows(elastic)),
                    ("undisturbed run, same seed", rows(undisturbed)), events), encoding="utf-8")

    def show(self, summary):
        say = self.display.say
        say()
        say("event                 step  workers   detect    agree     redo  transfer    pause  "
            "steps lost")
        for entry in summary["events"]:
            times = "".join(f"{entry[part + '_ms']:7.1f}{'   ' if part == 'transfer' else '  '}"
                            for part in ("detect", "agree", "redo", "transfer", "pause"))
            say(f"{WORDS[entry['kind']]:20}  {entry['step']:4}  {entry['size']:7}  {times}"
                f"{0 if summary['steps_lost'] == 0 else '?':>8}")
        say("Times in ms. Redo: from the agreement to the next commit; where nobody was lost that "
            "is the next\nstep itself, and no part of the pause.")
        say()
        say(f"steps                {summary['steps']}, lost {summary['steps_lost']}")
        say(f"loss                 {summary['first_loss']:.3f} to {summary['last_loss']:.3f}; "
            f"undisturbed {summary['last_loss_undisturbed']:.3f}")
        say(f"largest difference   {summary['loss_difference']:.1e} between the curves at any step")
        say(f"time                 {summary['seconds']:.0f} s for both runs")
        say(f"curves               {os.path.relpath(self.out / 'loss.svg')}")


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tiny model, for tests")
    parser.add_argument("--steps", type=int, default=0, help="of each run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--build", default=SOURCE / "build" / "release")
    parser.add_argument("--out", default=SOURCE / "build" / "demo")
    return parser.parse_args(words)


def main(words):
    def interrupted(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGTERM, interrupted)
    try:
        return 0 if Demo(options_of(words)).run() else 1
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; the job was ended", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
