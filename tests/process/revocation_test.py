#!/usr/bin/env python3
"""Workers that are told that they will be taken away: by the metadata service of a cloud, by a
signal to their agent, or by one of their own. They leave in order, and the training goes on."""

import http.server
import json
import os
import pathlib
import signal
import subprocess
import threading
import unittest

import elastic_job
from elastic_job import PATIENCE_S

BUILD = pathlib.Path(os.environ.get("PLIANT_BUILD_DIR", "build/release")).absolute()
PLIANT = os.environ.get("PLIANT_PROGRAM") or str(BUILD / "pliant")
HOSTS = ("127.0.0.1", "127.0.0.2")
# Runs a worker and writes its exit code down.
WRITES_CODE = 'codes=$1; shift; "$@"; code=$?; echo $code > $codes/$PLIANT_PEER; exit $code'


class Metadata(http.server.BaseHTTPRequestHandler):
    """The metadata services of three clouds; the first part of a path names the host."""

    def answer(self, status, text=""):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        fits = self.path.endswith("/latest/api/token")
        lifetime = int(self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", 0))
        self.answer(200 if fits and lifetime > 0 else 400, "the-token")

    def do_GET(self):
        _, host, path = self.path.split("/", 2)
        revoked = host in self.server.revoked
        self.server.asked.add(host)
        if path.startswith("latest/"):
            self.aws(path, revoked)
        elif path.startswith("computeMetadata/"):
            self.gcp(path, revoked)
        else:
            self.azure(path, host, revoked)

    def aws(self, path, revoked):
        if self.headers.get("X-aws-ec2-metadata-token") != "the-token":
            self.answer(401)
        elif path != "latest/meta-data/spot/instance-action" or not revoked:
            self.answer(404)
        else:
            self.answer(200, '{"action": "terminate", "time": "2030-01-02T03:04:05Z"}')

    def gcp(self, path, revoked):
        if self.headers.get("Metadata-Flavor") != "Google":
            self.answer(403)
        elif path.endswith("/preempted"):
            self.answer(200, "TRUE" if revoked else "FALSE")
        else:
            self.answer(200, "NONE")

    def azure(self, path, host, revoked):
        if self.headers.get("Metadata") != "true":
            self.answer(400)
        elif path.startswith("metadata/instance/compute/name?"):
            self.answer(200, "vm-" + host)
        else:
            # Everybody hears of everybody; only what names a machine is about it.
            machines = ["somebody-else"] + ["vm-" + host] * revoked
            self.answer(200, json.dumps({"DocumentIncarnation": 1, "Events": [
                {"EventId": "1", "EventType": "Preempt", "EventStatus": "Scheduled",
                 "ResourceType": "VirtualMachine", "Resources": machines,
                 "NotBefore": "Wed, 02 Jan 2030 03:04:05 GMT"}]}))

    def log_message(self, *_):
        pass


class Job(elastic_job.Job):
    """A job of a test; it may write down the exit codes of its workers."""

    def __init__(self, test, *run_options, worker_options=(), codes=True):
        self.test = test
        super().__init__(PLIANT, None, ["--job", "train", *run_options], worker_options,
                         self.writing_codes if codes else None)
        test.addCleanup(self.clean_up)

    def writing_codes(self, worker):
        self.codes = os.path.join(self.directory, "codes")
        os.mkdir(self.codes)
        return ["/bin/sh", "-c", WRITES_CODE, "sh", self.codes, *worker]

    def await_codes(self, peers):
        """The exit codes of these workers, in their order."""
        def look():
            texts = []
            for peer in peers:
                path = pathlib.Path(self.codes, peer)
                texts.append(path.read_text() if path.exists() else "")
            return [int(text) for text in texts] if all(texts) else None
        return self.await_that(look)

    def events(self, kind):
        done = self.ask("events", "--no-follow", "--json")
        self.test.assertEqual(done.returncode, 0, done.stderr)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        return [event["message"] for event in events if event["kind"] == kind]

    def finish(self, stop=True):
        """Ends the job and judges every commit against a serial replay."""
        if stop:
            self.test.assertEqual(self.ask("stop").returncode, 0)
        code = self.end(None)
        self.test.assertEqual(self.judge(), "", self.text())
        return code


def peers_of(members, host):
    return [member["peer"] for member in members if member["host"] == host]


class Clouds(unittest.TestCase):
    def setUp(self):
        self.service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
        self.service.revoked = set()
        self.service.asked = set()
        self.service.handle_error = lambda *_: None  # a job that ends does not wait for answers
        thread = threading.Thread(target=self.service.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        self.addCleanup(self.service.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(self.service.shutdown)

    def options(self, cloud, poll="50ms"):
        port = self.service.server_address[1]
        return ("--revocation", cloud, "--metadata-url", "http://127.0.0.1:%d/{host}" % port,
                "--revocation-poll", poll)

    def lose_a_host(self, cloud, reason, hosts=HOSTS, *more):
        first, second = hosts[0], hosts[1].split("@")[0]
        job = Job(self, "-H", f"{first}:2,{hosts[1].replace('@', ':2@')}" if "@" in hosts[1]
                  else f"{first}:2,{second}:2", "--max", "4", *self.options(cloud), *more)
        before = job.await_members(4)["members"]
        job.await_steps(10)
        job.await_that(lambda: self.service.asked == {first, second})
        self.service.revoked.add(second)
        after = job.await_members(2)["members"]
        self.assertEqual({member["host"] for member in after}, {first})
        leavers = peers_of(before, second)
        self.assertEqual(job.await_codes(leavers), [0, 0])
        job.await_steps(10)
        # Nothing starts there any more, although four members are wanted.
        job.await_members(2)
        self.assertEqual(job.events("notice"), [f"host {second} will be taken away: {reason}"])
        self.assertEqual(job.events("loss"), [])
        leaves = job.events("leave")
        self.assertEqual(len(leaves), 2)
        for text in leaves:
            self.assertIn(f"leaves: {reason}", text)
        job.finish()

    def test_aws(self):
        self.lose_a_host("aws", "AWS will terminate it at 2030-01-02T03:04:05Z")

    def test_gcp(self):
        self.lose_a_host("gcp", "GCP preempts it")

    def test_azure_by_the_agent_of_another_host(self):
        self.lose_a_host("azure", "Azure will preempt it at Wed, 02 Jan 2030 03:04:05 GMT",
                         ("127.0.0.1", "far@127.0.0.1"), "--address", "127.0.0.1", "--launcher",
                         "env AT={host}")

    def test_workers_are_replaced_where_there_is_room(self):
        job = Job(self, "-n", "2", "-H", "127.0.0.1:2,127.0.0.2:2", "--min", "2",
                  *self.options("gcp"))
        before = job.await_members(2)["members"]
        self.assertEqual({member["host"] for member in before}, {HOSTS[0]})
        job.await_steps(5)
        self.service.revoked.add(HOSTS[0])
        job.await_status(lambda status: {member["host"] for member in status["members"]} ==
                         {HOSTS[1]})
        self.assertEqual(job.await_codes(peers_of(before, HOSTS[0])), [0, 0])
        job.await_steps(5)
        # They stayed until the others were there.
        self.assertEqual((job.events("pause"), job.events("loss")), ([], []))
        job.finish()

    def test_below_the_minimum_the_job_pauses(self):
        job = Job(self, "-H", "127.0.0.1:1,127.0.0.2:1", "--min", "2", *self.options("gcp"))
        before = job.await_members(2)["members"]
        job.await_steps(5)
        self.service.revoked.add(HOSTS[1])
        self.assertEqual(job.await_codes(peers_of(before, HOSTS[1])), [0])
        status = job.await_status(lambda status: status["state"] == "paused")
        self.assertIn("1 of at least 2 members are left", json.dumps(status))
        job.finish()

    def test_when_all_hosts_go_the_job_ends(self):
        job = Job(self, "-H", "127.0.0.1:1,127.0.0.2:1", "--min", "1", *self.options("gcp"))
        before = job.await_members(2)["members"]
        job.await_steps(5)
        self.service.revoked.update(HOSTS)
        self.assertEqual(job.finish(stop=False), 143)
        for member in before:
            self.assertEqual(pathlib.Path(job.codes, member["peer"]).read_text(), "0\n")
        self.assertIn("all members were told to leave", job.lines[-1])
        self.assertIn("GCP preempts it", job.lines[-1])

    def test_a_service_that_does_not_answer_disturbs_nobody(self):
        self.service.server_close()
        job = Job(self, "-n", "2", "--max", "2", "-v", *self.options("aws", "10ms"),
                  worker_options=["--steps", "300", "--compute-ms", "2"])
        self.assertEqual(job.finish(stop=False), 0)
        told = [line for line in job.lines if "does not say whether this machine" in line]
        self.assertEqual(len(told), 1, job.text())

    def test_contradictions_are_explained(self):
        for text, options in (
                ("--revocation is for elastic jobs", ["--revocation", "aws"]),
                ("need a cloud", ["--max", "2", "--metadata-url", "http://127.0.0.1"]),
                ("need a cloud", ["--max", "2", "--revocation-poll", "1s"]),
                ("does not begin with http://",
                 ["--max", "2", "--revocation", "aws", "--metadata-url", "ftp://127.0.0.1"]),
                ("numeric address",
                 ["--max", "2", "--revocation", "gcp", "--metadata-url", "http://metadata.google"]),
                ("too often", ["--max", "2", "--revocation", "gcp", "--revocation-poll", "1us"])):
            done = subprocess.run([PLIANT, "run", "-n", "2", *options, "--", "true"],
                                  capture_output=True, text=True, check=False, timeout=PATIENCE_S)
            self.assertEqual(done.returncode, 2, (options, done))
            self.assertIn(text, done.stderr)
        done = subprocess.run([PLIANT, "run", "-n", "2", "--max", "2", "--revocation", "ibm", "--",
                               "true"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("ibm", done.stderr)


class Signals(unittest.TestCase):
    def test_a_worker_that_is_told_to_end_leaves_in_order(self):
        job = Job(self, "-n", "3", "--max", "3")
        told = job.await_members(3)["members"][1]
        job.await_steps(10)
        os.kill(told["pid"], signal.SIGTERM)
        self.assertEqual(job.await_codes([told["peer"]]), [0])
        left = job.await_members(2)["members"]
        self.assertNotIn(told["peer"], [member["peer"] for member in left])
        job.await_steps(10)
        notices = job.events("notice")
        self.assertEqual(len(notices), 1)
        self.assertIn("it was told to end by signal 15", notices[0])
        self.assertEqual((job.events("loss"), job.events("failure")), ([], []))
        self.assertEqual(len(job.events("leave")), 1)
        job.finish()

    def test_with_restarts_another_one_takes_its_place(self):
        job = Job(self, "-n", "2", "--min", "2", "--max", "2", "--restart")
        told = job.await_members(2)["members"][0]
        job.await_steps(10)
        os.kill(told["pid"], signal.SIGTERM)
        self.assertEqual(job.await_codes([told["peer"]]), [0])
        job.await_status(lambda status: len(status["members"]) == 2 and told["peer"] not in
                         [member["peer"] for member in status["members"]])
        job.await_steps(10)
        self.assertEqual(job.events("loss"), [])
        job.finish()

    def test_the_coordinator_may_be_away(self):
        job = Job(self, "-n", "3", "--max", "3", "--heartbeat", "500ms")
        told = job.await_members(3)["members"][1]
        job.await_steps(5)
        coordinator = job.status()["coordinator_pid"]
        os.kill(coordinator, signal.SIGSTOP)
        os.kill(told["pid"], signal.SIGTERM)
        os.kill(coordinator, signal.SIGKILL)
        self.assertEqual(job.await_codes([told["peer"]]), [0])
        job.await_members(2)
        job.await_steps(5)
        job.finish()

    def test_all_workers_leave_in_order_when_the_job_is_stopped(self):
        job = Job(self, "-n", "3", "--max", "3", codes=False)
        job.await_members(3)
        job.await_steps(10)
        self.assertEqual(job.finish(), 0, job.text())

    def test_all_workers_leave_in_order_when_the_launcher_is_told_to_end(self):
        job = Job(self, "-n", "3", "--max", "3", codes=False)
        job.await_members(3)
        job.await_steps(10)
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.finish(stop=False), 0, job.text())

    def test_an_agent_that_is_told_to_end_drains_its_host(self):
        job = Job(self, "-H", "127.0.0.1:1,far:1@127.0.0.1", "--address", "127.0.0.1", "--launcher",
                  "env AT={host}", "--min", "1")
        before = job.await_members(2)["members"]
        job.await_steps(5)
        os.kill(job.agents()["far"], signal.SIGTERM)
        self.assertEqual(job.await_codes(peers_of(before, "far")), [0])
        job.await_members(1)
        self.assertIn("its agent was told to end by signal 15", job.events("notice")[0])
        job.finish()


if __name__ == "__main__":
    unittest.main(verbosity=2)
