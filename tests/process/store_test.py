#!/usr/bin/env python3
"""The store of a host under real jobs: tensors outlive the workers that wrote them, half of a
version is none, limits and tokens are kept, and nothing is left behind."""

import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

from launched import LIMIT_S, PROGRAM, alive, environment, wait_until

BUILD = pathlib.Path(os.environ.get("PLIANT_BUILD_DIR", "build/release")).absolute()
WORKER = str(next(BUILD.rglob("store_worker")))


class Job:
    """`pliant run` with store workers; collects what they print."""

    def __init__(self, test, run_options, *worker):
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        os.chmod(folder.name, 0o700)
        self.variables = environment(XDG_RUNTIME_DIR=folder.name)
        self.go = self.folder / "go"
        words = [str(self.go) if word == "GO" else str(word) for word in worker]
        self.process = subprocess.Popen(
            [PROGRAM, "run", "--job", "train", "--no-prefix", *run_options, "--", WORKER, *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.variables)
        self.lines = []
        self.errors = ""
        self.readers = [threading.Thread(target=self.read), threading.Thread(target=self.hear)]
        for reader in self.readers:
            reader.start()
        test.addCleanup(self.clean_up)

    def read(self):
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def hear(self):
        for line in self.process.stderr:
            self.errors += line

    def clean_up(self):
        if self.process.poll() is None:
            self.process.kill()
        self.end()

    def end(self):
        code = self.process.wait(LIMIT_S)
        for reader in self.readers:
            reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def said(self, key, count=1):
        """The lines with this key, once there are so many."""
        found = lambda: [line for line in self.lines if key in line]
        wait_until(lambda: len(found()) >= count or self.process.poll() is not None,
                   f"{count} workers say {key}")
        if len(found()) < count:
            raise AssertionError(f"the job ended: {self.lines} {self.errors}")
        return found()

    def store(self, *arguments, **options):
        return subprocess.run([PROGRAM, "store", *arguments], capture_output=True,
                              env=self.variables, timeout=LIMIT_S, **options)

    def versions(self):
        done = self.store("ls", "--job", "train", "/", "--json")
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return [version["step"] for version in json.loads(done.stdout)]

    def entry(self):
        (file,) = (self.folder / "pliant").glob("*.json")
        return json.loads(file.read_text())["stores"][0]

    def held_memory(self):
        """Blocks of the store that the agent has open."""
        count = 0
        for link in pathlib.Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                count += "memfd:pliant-store" in os.readlink(link)
            except OSError:
                pass
        return count


def local_sockets(pid):
    return re.findall(rf"@(pliant-store-{pid}-\w+)", pathlib.Path("/proc/net/unix").read_text())


def bytes_of(step, first, count):
    return bytes((place * 31 + place // 251 + step) & 0xff for place in range(first, first + count))


class Store(unittest.TestCase):
    def succeed(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_people_see_and_copy_what_the_workers_keep(self):
        job = Job(self, ["-n", "2"], "hold", 7, 1000, "GO")
        job.said("kept", 2)
        self.assertEqual(job.versions(), [7])
        tensors = json.loads(self.succeed(job.store("ls", "--job", "train", "/7", "--json")))
        self.assertEqual([t["name"] for t in tensors["tensors"]], ["layer/w"])
        self.assertEqual(tensors["tensors"][0]["shape"], [2, 1000])
        self.assertEqual(len(tensors["tensors"][0]["pieces"]), 2)
        raw = self.succeed(job.store("get", "--job", "train", "/newest/layer/w"))
        self.assertEqual(raw, bytes_of(7, 0, 2000))
        part = self.succeed(
            job.store("get", "--job", "train", "/7/layer/w", "--box", "0:2,998:1000"))
        self.assertEqual(part, bytes_of(7, 998, 2) + bytes_of(7, 1998, 2))
        self.assertIn(b"2000 of 2000 elements",
                      self.succeed(job.store("stat", "--job", "train", "/7/layer/w")))
        self.assertIn(b"sound", self.succeed(job.store("verify", "--job", "train", "/7")))
        # Out into a file and back in as another version.
        file = str(job.folder / "all.safetensors")
        self.succeed(job.store("get", "--job", "train", "/7", "-o", file))
        again = job.store("get", "--job", "train", "/7", "-o", file)
        self.assertEqual(again.returncode, 1)
        self.succeed(job.store("get", "--job", "train", "/7", "-o", file, "--force"))
        self.succeed(job.store("put", "--job", "train", "/8", file))
        self.assertEqual(job.versions(), [7, 8])
        self.assertEqual(self.succeed(job.store("get", "--job", "train", "/8/layer/w")), raw)
        for wrong in (["get", "--job", "train", "/9/layer/w"], ["get", "--job", "train", "/7/none"],
                      ["ls", "--job", "none", "/"], ["ls", "--job", "train", "7"],
                      ["get", "--job", "train", "/7/layer/w", "--box", "0:3,:"],
                      ["ls", "--job", "train", "--host", "moon", "/"]):
            done = job.store(*wrong)
            self.assertEqual((done.returncode, done.stdout), (1, b""), wrong)
            self.assertTrue(done.stderr.startswith(b"pliant: "), done.stderr)
        job.go.touch()
        # The version that was put in last has the bytes of step 7.
        self.assertEqual(len(job.said("sound", 2)), 2)
        job.end()

    def test_tools_read_over_http_with_the_token(self):
        job = Job(self, ["-n", "2"], "hold", 7, 1000, "GO")
        job.said("kept", 2)
        entry = job.entry()

        def get(path, token=entry["token"], **fields):
            request = urllib.request.Request(f"http://{entry['endpoint']}{path}", headers={
                "Authorization": f"Bearer {token}", **fields})
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                return answer.status, answer.read()

        self.assertEqual(json.loads(get("/v1/store")[1])["versions"][0]["step"], 7)
        self.assertEqual(get("/v1/store/7/layer/w"), (200, bytes_of(7, 0, 2000)))
        self.assertEqual(get("/v1/store/7/layer%2Fw?box=1:2,0:10")[1], bytes_of(7, 1000, 10))
        self.assertEqual(get("/v1/store/newest/layer/w", Range="bytes=995-1004"),
                         (206, bytes_of(7, 995, 10)))
        with self.assertRaises(urllib.error.HTTPError) as refused:
            get("/v1/store", token="x" * 64)
        self.assertEqual(refused.exception.code, 401)
        refused.exception.close()
        job.go.touch()
        self.assertEqual(job.end(), 0, job.errors)

    def test_a_killed_worker_is_replaced_and_finds_its_state(self):
        job = Job(self, ["-n", "1", "--min", "1", "--restart"], "replace")
        (first,) = job.said("kept")
        os.kill(first["pid"], signal.SIGKILL)
        (second,) = job.said("restored")
        self.assertEqual(second["restored"], 5)
        self.assertEqual(second["checksum"], first["checksum"])
        self.assertEqual(job.end(), 0, job.errors)

    def test_half_of_a_version_is_none_and_goes_with_its_writer(self):
        job = Job(self, ["-n", "2", "--min", "1"], "partial")
        writer = next(line for line in job.said("writes", 2) if line["writes"])
        wait_until(lambda: job.held_memory() == 1, "the part is with the agent")
        self.assertEqual(job.versions(), [])
        os.kill(writer["pid"], signal.SIGKILL)
        wait_until(lambda: job.held_memory() == 0, "the part of the dead writer is gone")
        self.assertEqual(job.versions(), [])
        job.process.send_signal(signal.SIGTERM)
        job.process.send_signal(signal.SIGTERM)
        job.end()

    def test_each_host_has_copies_of_the_others(self):
        hosts = ["-H", "a:1@127.0.0.1,b:1@127.0.0.1,c:1@127.0.0.1", "--address", "127.0.0.1",
                 "--launcher", "env AT={host}"]
        job = Job(self, [*hosts, "--store-copies", "3"], "spread", 7, 3_000_000)
        self.assertEqual([line["sound"] for line in job.said("sound", 3)], [True] * 3, job.errors)
        self.assertEqual(job.end(), 0, job.errors)

    def test_a_limit_is_an_error_of_the_writer(self):
        job = Job(self, ["-n", "1", "--store-limit", "1M"], "hold", 7, 2 << 20, "GO")
        (error,) = job.said("error")
        self.assertEqual(error["code"], "overloaded")
        self.assertIn("room for two versions", error["error"])
        self.assertEqual(job.end(), 1)

    def test_strangers_get_nothing(self):
        job = Job(self, ["-n", "1"], "hold", 7, 1000, "GO")
        (kept,) = job.said("kept")
        name = "\0" + kept["store"]
        for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000,
                      struct.pack("<IHH", 0, 1, 9)):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
                stranger.settimeout(LIMIT_S)
                stranger.connect(name)
                try:
                    stranger.sendall(noise)
                    stranger.shutdown(socket.SHUT_WR)
                    self.assertEqual(stranger.recv(1), b"")
                except (ConnectionResetError, BrokenPipeError):
                    pass
        self.assertEqual(job.versions(), [7])
        # The same as a command whose job file has a wrong token.
        (file,) = (job.folder / "pliant").glob("*.json")
        entry = json.loads(file.read_text())
        entry["stores"][0]["token"] = "0" * 64
        file.write_text(json.dumps(entry))
        done = job.store("ls", "--job", "train", "/")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"wrong token or job", done.stderr)
        job.go.touch()
        self.assertEqual(job.end(), 0, job.errors)

    def test_a_job_that_starts_again_begins_with_what_is_on_the_disk(self):
        with tempfile.TemporaryDirectory() as folder:
            said = []
            for step in (10, 20):
                job = Job(self, ["-n", "2", "--store-dir", folder], "again", step)
                said.append(job.said("kept", 2))
                self.assertEqual(job.end(), 0, job.errors)
                self.assertEqual(os.listdir(folder), ["localhost.safetensors"])
            self.assertEqual([line["restored"] for line in said[0]], [None, None])
            self.assertEqual([line["restored"] for line in said[1]], [10, 10])
            # Both have all of it, half from each worker of the first job.
            self.assertEqual(said[1][0]["checksum"], said[1][1]["checksum"])
            done = subprocess.run([PROGRAM, "store", "verify", folder + "/localhost.safetensors"],
                                  capture_output=True, timeout=LIMIT_S)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_nothing_is_left_behind(self):
        before = set(os.listdir("/dev/shm"))
        job = Job(self, ["-n", "2"], "hold", 7, 1000, "GO")
        pids = [line["pid"] for line in job.said("kept", 2)]
        self.assertEqual(len(local_sockets(job.process.pid)), 1)
        job.go.touch()
        self.assertEqual(job.end(), 0, job.errors)
        self.assertEqual([pid for pid in pids if alive(pid)], [])
        self.assertEqual(local_sockets(job.process.pid), [])
        self.assertEqual([n for n in set(os.listdir("/dev/shm")) - before if "pliant" in n], [])
        self.assertEqual(list((job.folder / "pliant").glob("*.json")), [])


if __name__ == "__main__":
    unittest.main()
