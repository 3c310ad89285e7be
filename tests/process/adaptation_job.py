"""Jobs of adaptation workers: what they wrote down, and whether they agree."""

import os
import pathlib

import elastic_job
from elastic_job import alive

BUILD = pathlib.Path(os.environ.get("PLIANT_BUILD_DIR", "build/release"))
PLIANT = str(BUILD / "pliant")


def worker_program():
    return str(next(BUILD.rglob("adaptation_worker")))


def parse(line):
    fields = dict(part.split("=", 1) for part in line.split())
    return {name: value if name in ("signals", "topology") else float(value)
            for name, value in fields.items()}


class Job(elastic_job.Job):
    """Ends by itself, after so many steps or by a policy."""

    def __init__(self, members, run_options, worker_options, **options):
        def command(chaos_worker):
            folder = chaos_worker[chaos_worker.index("--records") + 1]
            return [worker_program(), "--folder", folder, *map(str, worker_options)]
        super().__init__(PLIANT, members, run_options, (), command=command, **options)

    def commits(self):
        """The commits of each worker, by pid; a line that is being written is left out."""
        found = {}
        for name in os.listdir(self.folder):
            text = pathlib.Path(self.folder, name).read_text()
            found[int(name)] = [parse(line) for line in text.split("\n")[:-1]]
        return found

    def newest(self):
        last = [made[-1] for made in self.commits().values() if made]
        return max(last, key=lambda line: line["step"], default=None)

    def await_step(self, step, members=None):
        return self.await_that(lambda: (
            (line := self.newest()) and line["step"] >= step
            and members in (None, line["members"]) and line))

    def by_step(self):
        """One line for each committed step, after a look whether all workers wrote the same."""
        agreed = {}
        for pid, made in self.commits().items():
            for line in made:
                common = {name: value for name, value in line.items() if name != "measured"}
                before = agreed.setdefault(line["step"], common)
                if before != common:
                    raise AssertionError(f"worker {pid} has {common}, others {before}")
        steps = sorted(agreed)
        if steps != list(range(1, len(steps) + 1)):
            raise AssertionError(f"steps are missing among {steps}")
        return [agreed[step] for step in steps]

    def decisions(self):
        """What the policies' lines say."""
        return [line.strip() for line in self.text().split("\n") if ": policy " in line]

    def by_pid(self):
        """Those that run and have committed a step."""
        return sorted(pid for pid, made in self.commits().items() if made and alive(pid))
