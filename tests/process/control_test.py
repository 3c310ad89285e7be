"""`pliant status|top|events|resize|drain|stop` against a job with the real HTTP interface.

The job is tests/process/control_worker, whose coordinator is pretended: it prints each wish that it
is told, and does what its standard input says. Nothing here waits for time to pass.
"""

import contextlib
import http.client
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

BUILD = os.path.abspath(os.environ.get("PLIANT_BUILD_DIR", "build/release"))
PROGRAM = os.path.abspath(os.environ.get("PLIANT_PROGRAM") or os.path.join(BUILD, "pliant"))
WORKER = os.environ.get("PLIANT_CONTROL_WORKER") or os.path.join(
    BUILD, "tests/process/control_worker")
LIMIT_S = 60  # only keeps a broken run from hanging
TOKEN = "a-very-secret-token"


class Job:
    """A running control_worker."""

    def __init__(self, test, name, endpoint="127.0.0.1:0"):
        self.process = subprocess.Popen(
            [WORKER, name, endpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=test.environment(PLIANT_TOKEN=TOKEN))
        test.addCleanup(self.close)
        word, self.endpoint = self.line().split()
        test.assertEqual(word, "ready")
        self.pid = self.process.pid

    def line(self):
        return self.process.stdout.readline().rstrip("\n")

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.line()

    def close(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.wait(LIMIT_S)
        self.process.stdout.close()


class ControlTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="pliant-control-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)

    def environment(self, **extra):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PLIANT_")}
        return {**kept, "XDG_RUNTIME_DIR": self.directory, "HOME": self.directory, **extra}

    def run_pliant(self, *arguments, **variables):
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True,
                              timeout=LIMIT_S, env=self.environment(**variables))

    def succeed(self, *arguments, **variables):
        done = self.run_pliant(*arguments, **variables)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        return done.stdout

    def refuse(self, text, *arguments, code=1, **variables):
        done = self.run_pliant(*arguments, **variables)
        self.assertEqual((done.returncode, done.stdout), (code, ""), done)
        self.assertIn(text, done.stderr)
        self.assertNotIn(TOKEN, done.stderr)
        if code == 1:
            self.assertRegex(done.stderr, r"\Apliant: [^\n]+\n\Z")

    def start(self, *arguments):
        process = subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=self.environment())
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process


class Wishes(ControlTest):
    def test_status(self):
        self.job = Job(self, "train")
        text = self.succeed("status")
        self.assertTrue(text.startswith(
            "job train: running, epoch 1, 2 of 2 members (1 to 8), step 0, 0 samples\n"), text)
        self.assertIn("0.1#1", text)
        status = json.loads(self.succeed("status", "--json"))
        self.assertEqual((status["job"], status["state"], len(status["members"])),
                         ("train", "running", 2))
        self.job.tell("pause 1 of 2 members")
        self.assertIn("paused (1 of 2 members)", self.succeed("status"))

    def test_resize(self):
        job = Job(self, "train")
        self.assertEqual(self.succeed("resize", "4"), "the job is to have 4 members\n")
        self.assertEqual(job.line(), 'wish {"size":4}')
        self.assertEqual(json.loads(self.succeed("status", "--json"))["target"], 4)
        self.refuse("the size must be at least 1", "resize", "0")
        self.refuse("the size must be at most 8", "resize", "9")
        for wrong in (["x"], ["-1"], ["1.5"], ["70000"], []):
            self.refuse("", "resize", *wrong, code=2)

    def test_drain(self):
        job = Job(self, "train")
        self.assertEqual(self.succeed("drain", "a"), "host a is leaving\n")
        self.assertEqual(job.line(), 'wish {"host":"a"}')
        self.assertEqual(self.succeed("drain", "0.1#1"), "peer 0.1#1 is leaving\n")
        self.assertEqual(job.line(), 'wish {"peer":"0.1#1"}')
        self.refuse("there is no such host", "drain", "b")

    def test_stop(self):
        job = Job(self, "train")
        self.assertEqual(self.succeed("stop"), "the job is ending\n")
        self.assertEqual(job.process.wait(LIMIT_S), 0)
        self.refuse("no job of yours is running", "status")
        self.assertEqual(os.listdir(os.path.join(self.directory, "pliant")), [])

    def test_help(self):
        for command in ("status", "top", "events", "resize", "drain", "stop"):
            text = self.succeed(command, "--help")
            self.assertIn("Examples:\n  pliant " + command, text)
            self.assertIn("--job", text)
            for shell in ("bash", "zsh", "fish"):
                self.assertIn(command, self.succeed("completion", shell))


class Choosing(ControlTest):
    def test_none(self):
        for command in (["status"], ["top"], ["events"], ["resize", "2"], ["drain", "a"], ["stop"]):
            self.refuse("no job of yours is running", *command)

    def test_one_of_several(self):
        one, two, other = Job(self, "train"), Job(self, "train"), Job(self, "eval")
        self.refuse(f"train (pid {one.pid}), ", "status")
        self.refuse(f"train (pid {two.pid})", "status", "--job", "train")
        self.refuse("no job 'nosuch' is running", "status", "--job", "nosuch")
        self.assertIn("job eval", self.succeed("status", "--job", "eval"))
        self.succeed("resize", "3", "--job", str(two.pid))
        self.assertEqual(two.line(), 'wish {"size":3}')
        other.close()
        self.refuse("no job 'eval'", "status", "--job", "eval")

    def test_killed_launchers_leave_nothing(self):
        job = Job(self, "train")
        job.process.kill()
        job.process.wait(LIMIT_S)
        self.assertEqual(len(os.listdir(os.path.join(self.directory, "pliant"))), 1)
        self.refuse("no job of yours is running", "status")
        self.assertEqual(os.listdir(os.path.join(self.directory, "pliant")), [])

    def test_endpoint_and_token(self):
        job = Job(self, "train")
        at = ("--endpoint", job.endpoint)
        self.assertIn("job train", self.succeed("status", *at, PLIANT_TOKEN=TOKEN))
        for command in (["status"], ["top"], ["events"], ["events", "--no-follow"],
                        ["resize", "2"], ["drain", "a"], ["stop"]):
            self.refuse("the job's token is missing or wrong", *command, *at, PLIANT_TOKEN="wrong")
        self.refuse("PLIANT_TOKEN", "status", *at)
        self.refuse("is no endpoint", "status", "--endpoint", "here", PLIANT_TOKEN="x")
        self.refuse("", "status", "--job", "x", *at, code=2)
        job.close()
        self.refuse("cannot reach job at " + job.endpoint, "status", *at, PLIANT_TOKEN=TOKEN)

    def test_a_stopped_job_does_not_hang_us_for_ever(self):
        job = Job(self, "train")
        os.kill(job.pid, signal.SIGSTOP)
        try:
            self.refuse("does not answer in time", "status")
        finally:
            os.kill(job.pid, signal.SIGCONT)


class Events(ControlTest):
    def test_listed(self):
        job = Job(self, "train")
        self.assertEqual(self.succeed("events", "--no-follow"), "")
        job.tell("event loss 0.1#1 was killed\x1b[31m")
        job.tell("event view two members")
        lines = self.succeed("events", "--no-follow").splitlines()
        self.assertEqual(len(lines), 2)
        self.assertRegex(lines[0], r"^\d\d:\d\d:\d\d\.001  loss      0\.1#1 was killed\?\[31m$")
        lines = self.succeed("events", "--no-follow", "--since", "1", "--json").splitlines()
        self.assertEqual([json.loads(line)["message"] for line in lines], ["two members"])
        self.refuse("", "events", "--since", "x", code=2)

    def test_followed_to_the_end(self):
        job = Job(self, "train")
        job.tell("event view first")
        reader = self.start("events", "--json")
        self.assertEqual(json.loads(reader.stdout.readline())["message"], "first")
        job.tell("event view second")
        self.assertEqual(json.loads(reader.stdout.readline())["id"], 2)
        job.close()
        self.assertEqual(reader.stdout.read(), "")
        self.assertEqual(reader.wait(LIMIT_S), 0)

    def test_taken_up_again_after_a_crash(self):
        job = Job(self, "train")
        job.tell("event view first")
        reader = self.start("events")
        self.assertIn("first", reader.stdout.readline())
        job.tell("crash")
        job.process.wait(LIMIT_S)
        again = Job(self, "train", job.endpoint)
        for message in ("of number one", "after it"):
            again.tell("event view " + message)
        self.assertIn("after it", reader.stdout.readline())
        again.close()
        self.assertEqual(reader.wait(LIMIT_S), 0)

    def test_a_job_that_does_not_come_back(self):
        job = Job(self, "train")
        job.tell("event view first")
        reader = self.start("events")
        self.assertIn("first", reader.stdout.readline())
        job.tell("crash")
        self.assertEqual(reader.wait(LIMIT_S), 1)
        self.assertIn("no job of yours is running", reader.stderr.read())

    def test_no_reader(self):
        job = Job(self, "train")
        job.tell("event view first")
        reader = self.start("events")
        reader.stdout.readline()
        reader.stdout.close()
        for _ in range(3):
            job.tell("event view nobody reads")
        self.assertNotEqual(reader.wait(LIMIT_S), 0)


class Top(ControlTest):
    def test_lines_without_a_terminal(self):
        job = Job(self, "train")
        job.tell("event view first")
        top = self.start("top")
        self.assertTrue(top.stdout.readline().startswith("job train: running, epoch 1"))
        self.assertIn("first", top.stdout.readline())
        job.close()
        self.assertEqual(top.wait(LIMIT_S), 0)

    def watch(self, key):
        """Draws until the resize is seen, then sends a key; returns all output and the code."""
        job = Job(self, "train")
        master, slave = pty.openpty()
        top = subprocess.Popen([PROGRAM, "top"], stdin=slave, stdout=slave, stderr=slave,
                               env=self.environment(), start_new_session=True)
        os.close(slave)
        self.addCleanup(os.close, master)
        output = ""

        def read_until(text):
            nonlocal output
            deadline = time.monotonic() + LIMIT_S
            while text not in output and time.monotonic() < deadline:
                if select.select([master], [], [], LIMIT_S)[0]:
                    try:
                        output += os.read(master, 65536).decode()
                    except OSError:
                        break
            self.assertIn(text, output)

        read_until("2 of 2 members")
        self.succeed("resize", "3")
        read_until("there are 3 members")
        read_until("3 of 3 members")
        if key == "end":
            job.close()
            read_until("the job has ended")
        elif isinstance(key, int):
            top.send_signal(key)
        else:
            os.write(master, key.encode())
        code = top.wait(LIMIT_S)
        read_until("\x1b[?1049l")  # the terminal is put back
        return code

    def test_q(self):
        self.assertEqual(self.watch("q"), 0)

    def test_control_c(self):
        self.assertEqual(self.watch("\x03"), 0)

    def test_sigterm(self):
        self.assertEqual(self.watch(signal.SIGTERM), 0)

    def test_end_of_the_job(self):
        self.assertEqual(self.watch("end"), 0)


class OtherClients(ControlTest):
    """Whoever speaks HTTP is served, not our own client alone."""

    def test_python(self):
        job = Job(self, "train")
        connection = http.client.HTTPConnection(job.endpoint, timeout=LIMIT_S)
        self.addCleanup(connection.close)
        for path, expected in (("/healthz", 200), ("/metrics", 401), ("/v1/status", 401)):
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            self.assertEqual(answer.status, expected)
        headers = {"Authorization": "Bearer " + TOKEN}
        connection.request("GET", "/metrics", headers=headers)
        text = connection.getresponse().read().decode()
        self.assertIn('pliant_members{job="train"} 2\n', text)
        connection.request("PUT", "/v1/size", body=json.dumps({"size": 5}), headers=headers)
        answer = connection.getresponse()
        self.assertEqual((answer.status, json.loads(answer.read())), (202, {"target": 5}))
        connection.request("GET", "/v1/events", headers=headers)
        answer = connection.getresponse()
        lines = [answer.readline() for _ in range(5)]
        self.assertIn(b"event: view\n", lines)

    def test_answers_have_the_fields_of_their_description(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("PyYAML is not installed")
        root = os.environ.get("PLIANT_SOURCE_DIR", ".")
        with open(os.path.join(root, "docs/openapi.yaml")) as file:
            schemas = yaml.safe_load(file)["components"]["schemas"]
        job = Job(self, "train")
        job.tell("event view first")

        def get(path):
            connection = http.client.HTTPConnection(job.endpoint, timeout=LIMIT_S)
            self.addCleanup(connection.close)
            connection.request("GET", path, headers={"Authorization": "Bearer " + TOKEN})
            return json.loads(connection.getresponse().read())

        status = get("/v1/status")
        for name, value in (("Status", status), ("Change", status["last_change"]),
                            ("Member", status["members"][0]), ("Member", get("/v1/members")[0]),
                            ("View", get("/v1/view")), ("Event", get("/v1/events?follow=0")[0]),
                            ("Error", get("/nowhere"))):
            self.assertEqual(set(value), set(schemas[name]["properties"]), name)
            self.assertLessEqual(set(schemas[name]["required"]), set(value), name)

    def test_curl(self):
        if not shutil.which("curl"):
            self.skipTest("curl is not installed")
        job = Job(self, "train")
        done = subprocess.run(
            ["curl", "-sS", "-X", "PUT", "-d", '{"size": 9}', "-w", "%{http_code}",
             "-H", "Authorization: Bearer " + TOKEN, f"http://{job.endpoint}/v1/size"],
            capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(done.stdout, '{"error":"the size must be at most 8"}\n409', done.stderr)


if __name__ == "__main__":
    unittest.main()
