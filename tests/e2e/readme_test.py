#!/usr/bin/env python3
"""Does what the README says: compiles its program, runs its commands."""

import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["PLIANT_BUILD_DIR"])
SOURCE = pathlib.Path(os.environ["PLIANT_SOURCE_DIR"])
README = (SOURCE / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def commands():
    """The lines of the shell blocks, without their comments."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines]


class Readme(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        source = pathlib.Path(cls.folder.name) / "train.cc"
        source.write_text("#include <cstdio>\n" + blocks("cpp")[0], encoding="utf-8")
        sanitize = re.search(r"^PLIANT_SANITIZE:\w+=(.+)$",
                             (BUILD / "CMakeCache.txt").read_text(encoding="utf-8"), re.MULTILINE)
        flags = [f"-fsanitize={sanitize.group(1)}"] if sanitize else []
        command = [os.environ.get("CXX", "c++"), "-std=c++20", *flags, f"-I{SOURCE}", str(source),
                   f"-L{BUILD}", "-lpliant", f"-Wl,-rpath,{BUILD}", "-o",
                   str(source.with_suffix(""))]
        subprocess.run(command, check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def check(self, command, **options):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250,
                              **options)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}{done.stderr}")
        return done.stdout

    def test_program_alone(self):
        self.check([f"{self.folder.name}/train"])

    def test_commands(self):
        environment = dict(os.environ, PATH=f"{BUILD}:{os.environ['PATH']}")
        ran = 0
        for command in filter(None, commands()):
            if command[0] == "make":
                # Both are what continuous integration and newcomers run; here: do they exist?
                self.check(["make", "-n", *command[1:]], cwd=SOURCE)
            elif command[1] == "resize":
                self.check_on_a_job(command, cwd=self.folder.name, env=environment)
                ran += 1
            elif "-H" not in command:  # other hosts are the business of hosts_test.py
                shorter = ["0.05" if word_before == "--minutes" else word
                           for word_before, word in zip(["", *command], command)]
                self.check(shorter, cwd=self.folder.name, env=environment)
                ran += 1
        self.assertGreaterEqual(ran, 2)

    def check_on_a_job(self, command, **options):
        """Runs a command that needs a running job beside one of eight slots."""
        run = ["pliant", "run", "-n", "2", "--max", "8", "--job", f"readme-{os.getpid()}", "--",
               "./train"]
        with subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              **options) as job:
            of_this_job = ["--job", f"readme-{os.getpid()}"]
            while subprocess.run(["pliant", "status", *of_this_job], capture_output=True,
                                 check=False, **options).returncode != 0:
                self.assertIsNone(job.poll(), "the job ended before it could be asked")
            self.check([*command, *of_this_job], **options)
            said = job.stderr.read()
            self.assertEqual(job.wait(), 0, said)

    def test_links(self):
        for page in re.findall(r"\]\(([^)#:]+)\)", README):
            self.assertTrue((SOURCE / page).exists(), page)


if __name__ == "__main__":
    unittest.main(verbosity=2)
