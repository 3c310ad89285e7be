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
import time
import unittest
import urllib.error
import urllib.request

from launched import LIMIT_S, PROGRAM, alive, environment, host_agents, wait_until

BUILD = pathlib.Path(os.environ.get("PLIANT_BUILD_DIR", "build/release")).absolute()
WORKER = str(next(BUILD.rglob("store_worker")))


class Job:
    """`pliant run` with store workers; collects what they print."""

    def __init__(self, test, run_options, *worker, **variables):
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        os.chmod(folder.name, 0o700)
        self.variables = environment(XDG_RUNTIME_DIR=folder.name, **variables)
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

    def stop(self):
        """Ends a job whose workers wait to be killed."""
        def ended():
            # Two that come together count as one; the second one kills.
            self.process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
            return self.process.poll() is not None

        wait_until(ended, "the job ends")
        return self.end()

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
        return len(store_memory([self.process.pid]))

    def agents(self):
        return host_agents(self.process.pid)


def hosts(*names, slots=1):
    """Options of a job whose hosts are emulated: each has an agent of its own on this machine."""
    listed = ",".join(f"{name}:{slots}@127.0.0.1" for name in names)
    return ["-H", listed, "--address", "127.0.0.1", "--launcher", "env AT={host}"]


def local_sockets(pid):
    return re.findall(rf"@(pliant-store-{pid}-\w+)", pathlib.Path("/proc/net/unix").read_text())


def descendants(pid):
    """This process and all that it has started, and they have."""
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(") ", 1)[1].split()[1])
        except OSError:
            pass
    found = [pid]
    for parent in found:
        found += [child for child, its in parents.items() if its == parent]
    return found


def open_files(pids):
    for pid in pids:
        for link in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
            try:
                yield os.readlink(link)
            except OSError:
                pass


def store_memory(pids):
    return [link for link in open_files(pids) if "memfd:pliant-store" in link]


def store_sockets(pids=None):
    """Names of the Unix sockets of stores: of these processes, or all."""
    found = re.findall(r"@(pliant-store-(\d+)-\w+)", pathlib.Path("/proc/net/unix").read_text())
    return {name for name, pid in found if pids is None or int(pid) in pids}


def shared_files(pids):
    """What these have open below /dev/shm that bears our name: other jobs run there too."""
    return {link for link in open_files(pids) if link.startswith("/dev/shm/pliant")}


def listening(pids=None):
    """Sockets that listen, as /proc/net/tcp has them: of these processes, or all. With their
    numbers, for somebody else may get the same port."""
    inodes = None if pids is None else {link[8:-1] for link in open_files(pids)
                                        if link.startswith("socket:[")}
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {(row[1], row[9]) for row in rows
            if row[3] == "0A" and (inodes is None or row[9] in inodes)}


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

    def test_tools_put_tensors_over_http_with_the_token(self):
        job = Job(self, ["-n", "1", "--store-limit", "90M"], "hold", 7, 1000, "GO")
        job.said("kept")
        entry = job.entry()
        address = entry["endpoint"].rsplit(":", 1)

        def exchange(target, body=b"", length=None, token=entry["token"], sent=None):
            """Status and text of the answer; `sent` of the body, then our end is closed."""
            with socket.create_connection((address[0], int(address[1])), LIMIT_S) as line:
                length = len(body) if length is None else length
                sized = "" if length is False else f"Content-Length: {length}\r\n"
                line.sendall(f"PUT {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                             f"Authorization: Bearer {token}\r\n{sized}\r\n".encode())
                line.sendall(body if sent is None else body[:sent])
                if sent is not None:
                    line.shutdown(socket.SHUT_WR)
                answer = b""
                try:
                    while more := line.recv(65536):
                        answer += more
                except ConnectionResetError:
                    pass
            return int(answer.split()[1]) if answer else 0, answer

        content = bytes_of(3, 0, 4 * 6 * 4)
        at = "/v1/store/20/new/w?dtype=f32&shape=4,6"
        # Nothing of these is kept, nor of what is too large or for strangers even read.
        for code, target, more in [
                (400, at, {"length": 95}), (400, at, {"body": content[:-1]}),
                (400, "/v1/store/20/new/w?dtype=f31&shape=4,6", {}),
                (400, "/v1/store/20/new/w?shape=4,6", {}),
                (400, "/v1/store/20/new/w?dtype=f32", {}),
                (400, "/v1/store/20/new/w?dtype=f32&shape=4,6,", {}),
                (400, "/v1/store/20/new/w?dtype=f32&shape=4,-6", {}),
                (400, f"/v1/store/20/new/w?dtype=f32&shape={1 << 62},{1 << 62}", {}),
                (400, "/v1/store/newest/new/w?dtype=f32&shape=4,6", {}),
                (405, "/v1/store/20?dtype=f32&shape=4,6", {}),
                (401, at, {"token": "0" * 64}), (401, at, {"token": "0" * 64, "length": 60 << 20}),
                (411, at, {"length": False}), (413, at, {"length": 65 << 20}),
                (409, "/v1/store/7/new/w?dtype=f32&shape=4,6", {}),
                (0, at, {"sent": 50})]:
            found, answer = exchange(target, **{"body": content, **more})
            self.assertEqual(found, code, (target, more, answer))
        self.assertEqual(job.versions(), [7])
        self.assertEqual(exchange(at, content)[0], 201)
        self.assertEqual(job.versions(), [7, 20])
        self.assertEqual(self.succeed(job.store("get", "--job", "train", "/20/new/w")), content)
        self.assertIn(b"sound", self.succeed(job.store("verify", "--job", "train", "/20")))
        self.assertEqual(exchange(at, content)[0], 409)
        # Larger than what is read at once; and then there is no room for a second one beside it.
        large = bytes_of(1, 0, 1 << 20) * 60
        put = lambda step: exchange(f"/v1/store/{step}/big?dtype=u8&shape={len(large)}", large)
        self.assertEqual(put(21)[0], 201)
        self.assertEqual(put(22)[0], 507)
        self.assertEqual(job.versions()[-1], 21)
        self.assertEqual(self.succeed(job.store("get", "--job", "train", "/21/big")), large)
        job.stop()

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
        job.stop()

    def test_each_host_has_copies_of_the_others(self):
        job = Job(self, [*hosts("a", "b", "c"), "--store-copies", "3"], "spread", 7, 3_000_000)
        self.assertEqual([line["sound"] for line in job.said("sound", 3)], [True] * 3, job.errors)
        self.assertEqual(job.end(), 0, job.errors)

    def lose_a_host(self, names, copies):
        """A job of two workers on each host, of which the first host is killed once other hosts
        have its part (or know of it); what all say that are there afterwards."""
        job = Job(self, [*hosts(*names, slots=2), "--min", "1", "--restart", "--store-copies",
                         copies], "outlive", 2 * len(names), copies, 7, 300_000, "GO")
        kept = job.said("kept", 2 * len(names))
        lost = [line["pid"] for line in kept if line["host"] == names[0]]
        agent = job.agents()[names[0]]
        for pid in [agent, *lost]:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(alive, [agent, *lost])), "the host is gone")
        # The host comes back, with an empty store.
        wait_until(lambda: job.agents().get(names[0], agent) != agent, "the agent is started again")
        job.go.touch()
        return job

    def test_a_lost_host_is_restored_from_the_copies(self):
        for names in (["a", "b"], ["a", "b", "c"]):
            job = self.lose_a_host(names, "2")
            found = job.said("gathered", 2 * len(names))
            # Survivors, which have never lost it, and the replacements, which begin with nothing.
            self.assertEqual({line["host"] for line in found}, set(names))
            self.assertEqual({(line["gathered"], line["sound"]) for line in found}, {(7, True)})
            job.stop()

    def test_what_is_lost_with_a_host_is_named(self):
        job = self.lose_a_host(["a", "b"], "1")
        for line in job.said("error", 4):
            # Rows 0 and 1 were host a's alone, and two tensors of which b never had anything.
            self.assertIn("step 7: no host has", line["error"])
            for gone in ("of tensor 'only/0' (written on host 0)",
                         "of tensor 'only/1' (written on host 0)", "of tensor 'layer/w'"):
                self.assertIn(gone, line["error"])
            self.assertNotIn("only/2", line["error"])
        job.stop()

    def test_commands_reach_every_host(self):
        job = Job(self, hosts("a", "b"), "hold", 7, 1000, "GO")
        job.said("kept", 2)
        listed = json.loads(self.succeed(job.store("ls", "--job", "train", "/", "--json")))
        self.assertEqual([(v["host"], v["step"]) for v in listed], [("a", 7), ("b", 7)])
        # Each host has a tensor of this name, and the first counts; --host chooses.
        both = json.loads(self.succeed(job.store("ls", "--job", "train", "/7", "--json")))
        self.assertEqual([version["host"] for version in both], ["a", "b"])
        self.assertEqual(self.succeed(job.store("get", "--job", "train", "/7/layer/w")),
                         bytes_of(7, 0, 1000))
        for host in "ab":
            on = ["--job", "train", "--host", host]
            self.assertEqual(
                self.succeed(job.store("get", *on, "/newest/layer/w", "--box", "0:1,990:1000")),
                bytes_of(7, 990, 10))
            self.assertIn(f"1000 of 1000 elements on host {host}".encode(),
                          self.succeed(job.store("stat", *on, "/7/layer/w")))
            self.assertIn(b"sound", self.succeed(job.store("verify", *on, "/7")))
            file = str(job.folder / f"{host}.safetensors")
            self.succeed(job.store("get", *on, "/7", "-o", file))
            self.succeed(job.store("put", *on, "/8" if host == "a" else "/9", file))
        listed = json.loads(self.succeed(job.store("ls", "--job", "train", "/", "--json")))
        self.assertEqual([(v["host"], v["step"]) for v in listed],
                         [("a", 7), ("a", 8), ("b", 7), ("b", 9)])
        # Wherever it is.
        self.assertEqual(self.succeed(job.store("get", "--job", "train", "/9/layer/w")),
                         bytes_of(7, 0, 1000))
        self.assertIn(b"sound", self.succeed(job.store("verify", "--job", "train", "/7")))
        unknown = job.store("ls", "--job", "train", "--host", "moon", "/")
        self.assertEqual(unknown.returncode, 1)
        self.assertIn(b"has no host 'moon'; it has a, b", unknown.stderr)
        (file,) = (job.folder / "pliant").glob("*.json")
        entry = json.loads(file.read_text())
        entry["stores"][1]["token"] = "0" * 64
        file.write_text(json.dumps(entry))
        stranger = job.store("ls", "--job", "train", "--host", "b", "/")
        self.assertEqual(stranger.returncode, 1)
        self.assertIn(b"the store of host 'b' refused: wrong token or job", stranger.stderr)
        job.stop()

    def test_a_host_that_has_gone_is_named(self):
        # Whatever is started on b fails from then on.
        flag = tempfile.NamedTemporaryFile()
        self.addCleanup(flag.close)
        launcher = (f"sh -c 'test -e {flag.name} || test $0 = a || exit 3; AT=$0 exec \"$@\"' "
                    "{host}")
        options = [*hosts("a", "b")[:-1], launcher, "--min", "1"]
        job = Job(self, options, "hold", 7, 1000, "GO")
        job.said("kept", 2)
        flag.close()
        agent = job.agents()["b"]
        os.kill(agent, signal.SIGKILL)
        on_b = lambda: job.store("ls", "--job", "train", "--host", "b", "/")
        wait_until(lambda: b"host 'b' is gone" in on_b().stderr, "b is gone")
        self.assertEqual(on_b().returncode, 1)
        # The others are shown, and that one is missing is said.
        done = job.store("ls", "--job", "train", "/", "--json")
        self.assertEqual([v["host"] for v in json.loads(self.succeed(done))], ["a"])
        self.assertIn(b"host 'b' is gone", done.stderr)
        job.stop()

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

    def test_a_killed_launcher_leaves_what_is_on_the_disk_and_nothing_else(self):
        """Hosts of their own agents and one in the launcher itself."""
        for place in (["-n", "2"], hosts("a", "b")):
            with tempfile.TemporaryDirectory() as disk, tempfile.TemporaryDirectory() as files:
                options = [*place, "--min", "1", "--store-dir", disk, "--store-copies", "2"]
                job = Job(self, options, "hold", 7, 300_000, "GO", TMPDIR=files)
                pids = [line["pid"] for line in job.said("kept", 2)]
                names = ["localhost"] if "-n" in place else ["a", "b"]
                on_disk = [f"{name}.safetensors" for name in names]
                wait_until(lambda: sorted(os.listdir(disk)) == on_disk, "it is on the disk")
                family = descendants(job.process.pid)
                self.assertLess(set(pids), set(family))
                self.assertGreaterEqual(len(store_memory(family)), len(names))
                sockets = store_sockets(family)
                self.assertEqual(len(sockets), len(names))
                shared = shared_files(family)
                self.assertTrue(shared)
                ports = listening(family)
                self.assertGreaterEqual(len(ports), 2 * len(names))
                job.process.kill()
                job.end()
                wait_until(lambda: not any(map(alive, family)), "all processes have ended")
                self.assertEqual(sorted(os.listdir(disk)), on_disk)
                self.assertEqual(os.listdir(files), [])
                # The last thread of a process that is dead already may still be closing them.
                wait_until(lambda: not sockets & store_sockets(), "no socket of the store is left")
                wait_until(lambda: not ports & listening(), "nobody listens any more")
                wait_until(lambda: not any(map(os.path.exists, shared)), "its folder is removed")
                # Its private file is ignored, and goes with the next look.
                self.assertEqual(job.store("ls", "--job", "train", "/").returncode, 1)
                self.assertEqual(list((job.folder / "pliant").glob("*.json")), [])
                # The next job begins with what is on the disk.
                again = Job(self, options, "hold", 8, 1000, "GO")
                again.said("kept", 2)
                versions = again.store("ls", "--job", "train", "/", "--json")
                self.assertLessEqual({(name, 7) for name in names},
                                     {(v["host"], v["step"])
                                      for v in json.loads(self.succeed(versions))})
                self.assertEqual(
                    self.succeed(again.store("get", "--job", "train", "/7/layer/w", "--host",
                                             names[0])),
                    bytes_of(7, 0, 300_000 * (2 if "-n" in place else 1)))
                again.stop()

    def test_nothing_is_left_behind(self):
        job = Job(self, ["-n", "2"], "hold", 7, 1000, "GO")
        pids = [line["pid"] for line in job.said("kept", 2)]
        # A connection that a worker has not closed yet bears the name of the store that it is to.
        self.assertEqual(len(set(local_sockets(job.process.pid))), 1)
        shared = shared_files(descendants(job.process.pid))
        job.go.touch()
        self.assertEqual(job.end(), 0, job.errors)
        self.assertEqual([pid for pid in pids if alive(pid)], [])
        self.assertEqual(local_sockets(job.process.pid), [])
        self.assertEqual(list(filter(os.path.exists, shared)), [])
        self.assertEqual(list((job.folder / "pliant").glob("*.json")), [])


if __name__ == "__main__":
    unittest.main()
