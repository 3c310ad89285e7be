#!/usr/bin/env python3
"""The training programs: what they learn, what they say of bad input, and the demo."""

import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import xml.dom.minidom

from train_job import BUILD, PATIENCE_S, PROGRAM, SOURCE, environment, program, train_alone

DEMO = [sys.executable, str(SOURCE / "tools" / "demo.py"), "--quick", "--build", str(BUILD)]
TINY = ["--layers", "1", "--width", "16", "--heads", "2", "--block", "16", "--batch", "8"]


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S, env=environment())


class Programs(unittest.TestCase):
    def bad(self, said, *command, code=1):
        done = run(*command)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertRegex(done.stderr, said)

    def test_gpt_learns(self):
        rows, model = train_alone([program("gpt"), str(SOURCE / "docs"), "--steps", "80", *TINY])
        self.assertLess(rows[80]["loss"], rows[1]["loss"] - 1)
        self.assertIn("blocks.0.widen.weight", model)

    def test_token_files_are_as_text(self):
        with tempfile.TemporaryDirectory() as folder:
            text = (SOURCE / "docs" / "RUNNING.md").read_bytes()
            tokens = pathlib.Path(folder, "running.u16")
            tokens.write_bytes(struct.pack(f"<{len(text)}H", *text))
            options = ["--steps", "12", "--seed", "5", "--noise-every", "2", *TINY]
            read, _ = train_alone([program("gpt"), str(SOURCE / "docs" / "RUNNING.md"), *options])
            mapped, _ = train_alone([program("gpt"), str(tokens), "--tokens", "u16", *options,
                                     "--readers", "0"])
        self.assertEqual([row["loss"] for row in read.values()],
                         [row["loss"] for row in mapped.values()])

    def test_bad_input(self):
        gpt, digits = program("gpt"), program("digits")
        self.bad("no text '/nowhere'", gpt, "/nowhere")
        with tempfile.TemporaryDirectory() as folder:
            self.bad("has no .md, .txt or .rst file", gpt, folder)
            short = pathlib.Path(folder, "short.txt")
            short.write_text("short")
            self.bad("5 bytes, too few for one block of 64", gpt, str(short))
            short.write_text("x" * 200)
            self.bad("3 samples, fewer than one batch of 16", gpt, str(short))
            self.bad("token", gpt, str(short), "--tokens", "u16", "--batch", "1", "--block", "8")
        docs = str(SOURCE / "docs")
        self.bad("text is required", gpt, code=2)
        self.bad("--width 10 is no multiple of --heads 4", gpt, docs, "--width", "10")
        self.bad("the log '/nowhere/log' cannot be written", digits, "--log", "/nowhere/log")
        self.bad("there is no policy 'greed'|greed", digits, "--policy", "greed")
        for words in (["--steps", "0"], ["--dtype", "int8"], ["--lr", "-1"], ["--colour"]):
            self.bad(words[0], digits, *words, code=2)

    def test_models_that_differ_are_named(self):
        done = run(PROGRAM, "run", "-n", "2", "--", "sh", "-c",
                   program("digits") + " --steps 2 --hidden $((32 + RANK))")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr,
                         r"cannot join: it lacks state 'parameter 0.weight \(32x256\)'")


class Demo(unittest.TestCase):
    def test_demo(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run(*DEMO, "--out", folder)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertNotIn("\r", done.stdout)
            for words in ("2 workers join", "SIGKILL of a worker", "one worker leaves"):
                self.assertIn(words, done.stdout)
            summary = json.loads(pathlib.Path(folder, "summary.json").read_text())
            self.assertEqual(summary["steps_lost"], 0)
            self.assertLess(summary["loss_difference"], 1e-3)
            self.assertLess(summary["last_loss"], summary["first_loss"] - 1)
            drawn = xml.dom.minidom.parse(str(pathlib.Path(folder, "loss.svg")))
            curves = drawn.getElementsByTagName("polyline")
            self.assertEqual(len(curves), 2)
            for curve in curves:
                self.assertEqual(len(curve.getAttribute("points").split()), summary["steps"])

    def test_interrupted_demo_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            demo = subprocess.Popen([*DEMO, "--out", folder], stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True, env=environment())
            log = pathlib.Path(folder, "elastic.jsonl")
            while demo.poll() is None and not (log.exists() and log.read_text()):
                time.sleep(0.01)
            demo.send_signal(signal.SIGINT)
            _, said = demo.communicate(timeout=PATIENCE_S)
            self.assertEqual(demo.returncode, 130, said)
            self.assertEqual(processes_with(folder), [])

    def test_missing_program(self):
        done = run(*DEMO[:3], "--build", "/nowhere", "--out", "/tmp")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "/nowhere/pliant is missing; `make demo` builds it")


def processes_with(word):
    """Command lines of processes that have this word in them."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            line = pathlib.Path("/proc", entry, "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if re.search(re.escape(word), line):
            found.append(line.replace("\0", " "))
    return found


if __name__ == "__main__":
    unittest.main()
