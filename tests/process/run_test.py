"""`pliant run` as users meet it: codes, output, signals, environment, hosts, strangers, clean-up.

Workers are shell scripts; they say that they are ready by writing files, so nothing here waits for
time to pass.
"""

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

from launched import LIMIT_S, PROGRAM, alive, environment, run, start, wait_until


def processes_marked(mark):
    """Pids of all processes whose environment holds MARK=mark."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/environ", "rb") as file:
                if f"MARK={mark}".encode() in file.read().split(b"\0") and alive(int(name)):
                    found.append(int(name))
    return found


class RunTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="pliant-run-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.mark = os.path.basename(self.directory)

    def path(self, name):
        return os.path.join(self.directory, name)

    def read(self, name):
        with open(self.path(name)) as file:
            return file.read()

    def has(self, *names):
        return all(os.path.exists(self.path(n)) and os.path.getsize(self.path(n)) for n in names)

    def marked(self):
        return environment(MARK=self.mark, DIR=self.directory)

    def assert_nothing_left(self):
        wait_until(lambda: not processes_marked(self.mark), "all processes have ended")


class Codes(RunTest):
    def test_all_well(self):
        done = run("run", "-n", "3", "--", "/bin/sh", "-c", "exit 0")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_first_failure_gives_code_and_sentence(self):
        done = run("run", "-n", "3", "--grace", "0", "--", "/bin/sh", "-c",
                   "[ $RANK = 1 ] && exit 7; sleep 1000")
        self.assertEqual(done.returncode, 7)
        self.assertRegex(done.stderr,
                         r"^pliant: rank 1 \(host localhost, pid \d+\) exited with code 7; "
                         r"the job ends\n$")

    def test_signal_gives_128_and_more(self):
        done = run("run", "-n", "2", "--grace", "0", "--", "/bin/sh", "-c",
                   "[ $RANK = 0 ] && kill -9 $$; sleep 1000")
        self.assertEqual(done.returncode, 137)
        self.assertRegex(done.stderr, r"rank 0 \(host localhost, pid \d+\) was killed by signal 9 "
                                      r"\(Killed\); the job ends")

    def test_stubborn_workers_are_killed(self):
        done = run("run", "-n", "2", "--grace", "0", "--", "/bin/sh", "-c",
                   "[ $RANK = 1 ] && exit 3; trap '' TERM; while :; do sleep 1000; done",
                   env=self.marked())
        self.assertEqual(done.returncode, 3)
        self.assert_nothing_left()

    def test_others_may_end_by_themselves(self):
        done = run("run", "-n", "2", "--", "/bin/sh", "-c",
                   "[ $RANK = 1 ] && { echo $$ > $DIR/pid; exit 3; }; "
                   "until [ -s $DIR/pid ] && ! kill -0 $(cat $DIR/pid) 2>/dev/null; do :; done; "
                   "echo saved; exit 1", env=self.marked())
        self.assertEqual(done.returncode, 3)
        self.assertEqual(done.stdout, "[0] saved\n")

    def test_missing_program(self):
        done = run("run", "-n", "2", "--", "/nowhere/train")
        self.assertEqual(done.returncode, 127)
        self.assertIn("'/nowhere/train'", done.stderr)
        done = run("run", "-n", "2", "--", "no-such-program-anywhere")
        self.assertEqual(done.returncode, 127)
        self.assertIn("not in PATH", done.stderr)

    def test_program_that_cannot_be_executed(self):
        with open(self.path("data"), "w") as file:
            file.write("x")
        done = run("run", "-n", "2", "--", self.path("data"))
        self.assertEqual(done.returncode, 126)
        done = run("run", "-n", "2", "--", self.directory)
        self.assertEqual(done.returncode, 126)

    def test_program_without_interpreter(self):
        with open(self.path("script"), "w") as file:
            file.write("#!/nowhere/interpreter\n")
        os.chmod(self.path("script"), 0o755)
        done = run("run", "-n", "1", "--", self.path("script"))
        self.assertEqual(done.returncode, 126)
        self.assertIn("could not be started", done.stderr)


class CommandLine(RunTest):
    def assert_refused(self, text, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(text, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_wrong_ones_are_explained(self):
        ok = ["--", "/bin/true"]
        self.assert_refused("8 workers do not fit into 6 slots on 3 hosts; add hosts or slots",
                            "run", "-n", "8", "-H", "a:2,b:2,c:2", *ok)
        self.assert_refused("--bogus", "run", "-n", "2", "--bogus", *ok)
        self.assert_refused("-n", "run", *ok)
        self.assert_refused("which program", "run", "-n", "2")
        self.assert_refused("'a:x' is no host", "run", "-H", "a:x", *ok)
        no_name = "x" * 64  # too long for a name: no resolver is asked
        self.assert_refused(f"'{no_name}' is not known here", "run", "-H", f"{no_name}:2", *ok)
        self.assert_refused("named twice", "run", "-H", "a:1,a:1", *ok)
        self.assert_refused("wormhole", "run", "-n", "2", "--strategy", "wormhole", *ok)
        self.assert_refused("rdma", "run", "-n", "2", "--transport", "rdma", *ok)
        self.assert_refused("'soon' is no duration", "run", "-n", "2", "--timeout", "soon", *ok)
        self.assert_refused("'never' is no duration", "run", "-n", "2", "--grace", "never", *ok)
        self.assert_refused("NAME=VALUE", "run", "-n", "2", "--env", "=x", *ok)
        self.assert_refused("NOT_SET_ANYWHERE", "run", "-n", "2", "--env", "NOT_SET_ANYWHERE", *ok)
        self.assert_refused("cannot read the hostfile", "run", "--hostfile", "/nowhere", *ok)
        self.assert_refused("{host}", "run", "-H", "far", "--address", "127.0.0.1",
                            "--launcher", "ssh far", *ok)
        self.assert_refused("no numeric", "run", "-n", "2", "--address", "here", *ok)
        self.assert_refused("", "run", "-n", "zero", *ok)
        self.assert_refused("", "frobnicate")

    def test_users_variables_are_checked_too(self):
        done = run("run", "-n", "1", "--", "/bin/true", env=environment(PLIANT_TIMEOUT="soon"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("PLIANT_TIMEOUT", done.stderr)

    def test_program_keeps_its_own_options(self):
        script = 'printf "%s\\n" "$@"'
        for mark in (["--"], []):
            done = run("run", "-n", "1", "--no-prefix", *mark, "/bin/sh", "-c", script, "x",
                       "-n", "5", "--help", "--", "y z")
            self.assertEqual(done.stdout, "-n\n5\n--help\n--\ny z\n")

    def test_help_and_version(self):
        for arguments, text in ((["--help"], "run"), (["run", "--help"], "--launcher"),
                                (["agent", "--help"], "standard input"),
                                (["completion", "--help"], "bash"), (["--version"], "pliant ")):
            done = run(*arguments)
            self.assertEqual(done.returncode, 0)
            self.assertIn(text, done.stdout)

    def test_completion(self):
        for shell in ("bash", "zsh", "fish"):
            done = run("completion", shell)
            self.assertEqual(done.returncode, 0)
            self.assertIn("hostfile", done.stdout)
            if shutil.which(shell):
                subprocess.run([shell, "-n"], input=done.stdout, text=True, check=True)
        self.assertEqual(run("completion", "tcsh").returncode, 2)
        words = subprocess.run(
            ["bash", "-c", 'eval "$(' + PROGRAM + ' completion bash)"; '
             'COMP_WORDS=(pliant run --log); COMP_CWORD=2; _pliant; echo "${COMPREPLY[@]}"'],
            capture_output=True, text=True, check=True).stdout
        self.assertEqual(words, "--log-dir\n")

    def test_agent_is_not_for_people(self):
        done = run("agent", stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 1)
        self.assertIn("pliant run", done.stderr)
        done = subprocess.run([PROGRAM, "agent"], input=b"\xff" * 64, capture_output=True,
                              timeout=LIMIT_S)
        self.assertEqual(done.returncode, 1)


class OutputOfWorkers(RunTest):
    def test_prefixes_on_both_streams(self):
        done = run("run", "-n", "3", "--", "/bin/sh", "-c", "echo out; echo err >&2; printf rest")
        self.assertEqual(sorted(done.stdout.splitlines()),
                         sorted(f"[{r}] {t}" for r in range(3) for t in ("out", "rest")))
        self.assertEqual(sorted(done.stderr.splitlines()), [f"[{r}] err" for r in range(3)])

    def test_no_prefix(self):
        done = run("run", "-n", "2", "--no-prefix", "--", "/bin/sh", "-c", "echo out")
        self.assertEqual(done.stdout, "out\nout\n")

    def test_log_files(self):
        for quiet in ([], ["-q"]):
            done = run("run", "-n", "2", "--log-dir", "logs/here", *quiet, "--", "/bin/sh", "-c",
                       "echo out $RANK; echo err >&2", cwd=self.directory)
            self.assertEqual(done.returncode, 0)
            for rank in range(2):
                self.assertEqual(sorted(self.read(f"logs/here/rank-{rank}.log").splitlines()),
                                 ["err", f"out {rank}"])
            self.assertEqual(done.stdout == "", bool(quiet))

    def test_much_output_arrives_whole(self):
        done = run("run", "-n", "2", "--", "/bin/sh", "-c", "seq 1 100000")
        for rank in range(2):
            lines = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}] ")]
            self.assertEqual(lines, [f"[{rank}] {i}" for i in range(1, 100001)])

    def test_reader_that_goes_away_does_not_matter(self):
        job = start("run", "-n", "2", "--", "/bin/sh", "-c", "seq 1 100000; echo > $DIR/$RANK",
                    env=self.marked())
        job.stdout.readline()
        job.stdout.close()
        self.assertEqual(job.wait(LIMIT_S), 0)
        job.stderr.close()
        self.assertTrue(self.has("0", "1"))

    def test_reader_that_pauses_does_not_stop_signals(self):
        job = start("run", "-n", "1", "--", "/bin/sh", "-c", "echo > $DIR/ready; yes",
                    env=self.marked())
        wait_until(lambda: self.has("ready"), "it writes")
        job.send_signal(signal.SIGTERM)
        wait_until(lambda: not [p for p in processes_marked(self.mark) if p != job.pid],
                   "the worker has ended although nobody reads")
        with job.stdout, job.stderr:
            job.communicate(timeout=LIMIT_S)
        self.assertEqual(job.returncode, 143)


class Environment(RunTest):
    def variables(self, *arguments, **options):
        """The environment of each worker, by rank."""
        done = run("run", *arguments, "--", "/bin/sh", "-c", "env > $DIR/env.$RANK",
                   env=dict(self.marked(), **options))
        self.assertEqual(done.returncode, 0, done.stderr)
        found = {}
        for name in os.listdir(self.directory):
            if name.startswith("env."):
                lines = self.read(name).splitlines()
                found[int(name[4:])] = dict(line.split("=", 1) for line in lines if "=" in line)
        return found

    def test_torch_and_pliant(self):
        found = self.variables("-H", "localhost:2,127.0.0.2:1")
        self.assertEqual(sorted(found), [0, 1, 2])
        expected = [("0", "2", "0", "0.0#1", "127.0.0.1", "localhost"),
                    ("1", "2", "0", "0.1#1", "127.0.0.1", "localhost"),
                    ("0", "1", "1", "1.0#1", "127.0.0.2", "127.0.0.2")]
        for rank, (local, size, group, peer, address, host) in enumerate(expected):
            got = found[rank]
            self.assertEqual(got["RANK"], str(rank))
            self.assertEqual(got["WORLD_SIZE"], "3")
            self.assertEqual(got["LOCAL_RANK"], local)
            self.assertEqual(got["LOCAL_WORLD_SIZE"], size)
            self.assertEqual(got["GROUP_RANK"], group)
            self.assertEqual(got["MASTER_ADDR"], "127.0.0.1")
            self.assertEqual(got["MASTER_PORT"], found[0]["MASTER_PORT"])
            self.assertEqual(got["PLIANT_PEER"], peer)
            self.assertEqual(got["PLIANT_ADDRESS"], address)
            self.assertEqual(got["PLIANT_HOST"], host)
            self.assertEqual(got["PLIANT_JOB"], "sh")
            self.assertEqual(got["PLIANT_TOKEN"], found[0]["PLIANT_TOKEN"])
            self.assertGreaterEqual(len(got["PLIANT_TOKEN"]), 32)
            self.assertTrue(got["PLIANT_COORDINATOR"].startswith("127.0.0.1:"))
        # The rendezvous port is free on the first host.
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", int(found[0]["MASTER_PORT"])))

    def test_options_win_over_variables(self):
        found = self.variables("-n", "1", "--transport", "tcp", "--timeout", "2s", "--env",
                               "MINE=1 2", "--env", "HERE", HERE="passed on", PLIANT_TIMEOUT="9s",
                               PLIANT_JOIN_TIMEOUT="7s")[0]
        self.assertEqual(found["PLIANT_TRANSPORT"], "tcp")
        self.assertEqual(found["PLIANT_TIMEOUT"], "2000ms")
        self.assertEqual(found["PLIANT_JOIN_TIMEOUT"], "7000ms")
        self.assertEqual(found["MINE"], "1 2")
        self.assertEqual(found["HERE"], "passed on")

    def test_two_jobs_have_different_tokens(self):
        first = self.variables("-n", "1")[0]["PLIANT_TOKEN"]
        self.assertNotEqual(first, self.variables("-n", "1")[0]["PLIANT_TOKEN"])

    def test_token_is_in_no_argument_list(self):
        job = start("run", "-n", "1", "--", "/bin/sh", "-c",
                    "echo $PLIANT_TOKEN > $DIR/token; exec sleep 1000", env=self.marked())
        try:
            wait_until(lambda: self.has("token"), "the worker runs")
            token = self.read("token").strip().encode()
            for name in os.listdir("/proc"):
                if name.isdigit():
                    with contextlib.suppress(OSError):
                        with open(f"/proc/{name}/cmdline", "rb") as file:
                            self.assertNotIn(token, file.read())
        finally:
            job.kill()
            job.communicate(timeout=LIMIT_S)
        self.assert_nothing_left()

    def test_hostfile(self):
        with open(self.path("hosts"), "w") as file:
            file.write("# two of them\nlocalhost slots=1\n127.0.0.2:2\n")
        found = self.variables("--hostfile", self.path("hosts"))
        self.assertEqual([found[r]["PLIANT_HOST"] for r in sorted(found)],
                         ["localhost", "127.0.0.2", "127.0.0.2"])


class Signals(RunTest):
    def start_ready(self, script, *options):
        """A job of two workers that wait, each with a child, after `script`."""
        job = start("run", "-n", "2", *options, "--", "/bin/sh", "-c",
                    script + "; sh -c 'echo > $DIR/ready.$RANK; exec sleep 1000' & "
                    "while :; do wait; done", env=self.marked(), start_new_session=True)
        self.addCleanup(job.stdout.close)
        self.addCleanup(job.stderr.close)
        wait_until(lambda: self.has("ready.0", "ready.1"), "both workers are ready")
        return job

    def test_they_reach_the_workers(self):
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGTERM,
                       signal.SIGHUP):
            with self.subTest(signal=number):
                name = number.name[3:]
                job = self.start_ready(f"trap 'echo got {name}; exit 0' {name}")
                job.send_signal(number)
                out, error = job.communicate(timeout=LIMIT_S)
                self.assertEqual(sorted(out.splitlines()), [f"[0] got {name}", f"[1] got {name}"])
                self.assertEqual((job.returncode, error), (0, ""))
                self.assert_nothing_left()
                os.remove(self.path("ready.0"))
                os.remove(self.path("ready.1"))

    def test_interrupt_ends_the_job(self):
        job = self.start_ready(":")
        job.send_signal(signal.SIGINT)
        _, error = job.communicate(timeout=LIMIT_S)
        self.assertEqual(job.returncode, 130)
        self.assertIn("interrupted by signal 2 (Interrupt); the job ends", error)
        self.assert_nothing_left()

    def test_second_interrupt_kills(self):
        job = self.start_ready("trap 'echo >> $DIR/heard.$RANK' INT")
        job.send_signal(signal.SIGINT)
        wait_until(lambda: self.has("heard.0", "heard.1"), "both have heard it")
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=LIMIT_S)
        self.assertEqual(job.returncode, 130)
        self.assert_nothing_left()

    def test_killed_launcher_leaves_nothing(self):
        job = self.start_ready("trap '' TERM INT HUP")
        self.assertGreaterEqual(len(processes_marked(self.mark)), 5)
        job.kill()
        job.wait(LIMIT_S)
        self.assert_nothing_left()

    def test_daemons_of_workers_end_with_the_job(self):
        done = run("run", "-n", "2", "--", "/bin/sh", "-c",
                   "setsid sh -c 'echo > $DIR/daemon.$RANK; exec sleep 1000' & "
                   "until [ -e $DIR/daemon.$RANK ]; do :; done", env=self.marked())
        self.assertEqual(done.returncode, 0)
        self.assertEqual(processes_marked(self.mark), [])


class Strangers(RunTest):
    """Those who find the coordinator's port."""

    def setUp(self):
        super().setUp()
        self.job = start("run", "-n", "2", "--", "/bin/sh", "-c",
                         "echo $PLIANT_COORDINATOR > $DIR/where; until [ -e $DIR/end ]; do :; done;"
                         " echo well", env=self.marked())
        wait_until(lambda: self.has("where"), "the workers run")
        host, port = self.read("where").strip().rsplit(":", 1)
        self.address = (host, int(port))

    def tearDown(self):
        with open(self.path("end"), "w"):
            pass
        out, _ = self.job.communicate(timeout=LIMIT_S)
        self.assertEqual(sorted(out.splitlines()), ["[0] well", "[1] well"])
        self.assertEqual(self.job.returncode, 0)

    def answer_to(self, data):
        with socket.create_connection(self.address, timeout=LIMIT_S) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
            answer = b""
            with contextlib.suppress(ConnectionError):
                while part := connection.recv(4096):
                    answer += part
            return answer

    def test_garbage_and_huge_lengths_are_dropped(self):
        with open(f"/proc/{self.job.pid}/status") as file:
            before = int(file.read().split("VmRSS:")[1].split()[0])
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 1000, struct.pack("<I", 0xffffffff),
                     struct.pack("<I", 1 << 26) + b"x" * (1 << 20), struct.pack("<I", 0),
                     struct.pack("<IB", 1, 255)):
            self.assertEqual(self.answer_to(data), b"")
        with open(f"/proc/{self.job.pid}/status") as file:
            after = int(file.read().split("VmRSS:")[1].split()[0])
        self.assertLess(after - before, 4096, "KiB for strangers")

    def test_wrong_token_is_told_so(self):
        token = b"0" * 64
        answer = self.answer_to(struct.pack("<IBII", 9 + len(token), 0, 1, len(token)) + token)
        self.assertIn(b"the token is not that of this job", answer)

    def test_only_the_given_address_listens(self):
        with self.assertRaises(OSError):
            socket.create_connection(("127.0.0.9", self.address[1]), timeout=LIMIT_S).close()


def namespaces_work():
    if os.geteuid() != 0 or not shutil.which("ip"):
        return False
    name = f"pliant-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return made


@unittest.skipUnless(namespaces_work(), "needs root, ip and network namespaces")
class Hosts(RunTest):
    """Two hosts that are network namespaces behind a bridge."""

    def setUp(self):
        super().setUp()
        self.net = f"10.213.{os.getpid() % 250}"
        self.hosts = [f"pl{os.getpid()}a", f"pl{os.getpid()}b"]
        self.bridge = f"pl{os.getpid()}"
        try:
            self.ip("link", "add", self.bridge, "type", "bridge")
            self.ip("addr", "add", f"{self.net}.254/24", "dev", self.bridge)
            self.ip("link", "set", self.bridge, "up")
            for number, host in enumerate(self.hosts, start=1):
                self.ip("netns", "add", host)
                self.ip("link", "add", f"v{host}", "type", "veth", "peer", "name", "eth0",
                        "netns", host)
                self.ip("link", "set", f"v{host}", "master", self.bridge, "up")
                self.ip("-n", host, "addr", "add", f"{self.net}.{number}/24", "dev", "eth0")
                self.ip("-n", host, "link", "set", "eth0", "up")
                self.ip("-n", host, "link", "set", "lo", "up")
        except Exception:
            self.remove()
            raise
        self.addCleanup(self.remove)

    def ip(self, *arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def remove(self):
        for host in self.hosts:
            subprocess.run(["ip", "netns", "del", host], capture_output=True)
            subprocess.run(["ip", "link", "del", f"v{host}"], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)

    def options(self, hosts=None):
        a, b = self.hosts
        return ["run", "-H", hosts or f"{a}:2,{b}:2@{self.net}.2", "--address", f"{self.net}.254",
                "--launcher", "ip netns exec {host}"]

    def test_workers_run_where_they_belong(self):
        done = run(*self.options(), "--", "/bin/sh", "-c",
                   "echo $RANK $PLIANT_PEER $PLIANT_ADDRESS $MASTER_ADDR $(ip netns identify)",
                   env=self.marked())
        self.assertEqual(done.returncode, 0, done.stderr)
        a, b = self.hosts
        self.assertEqual(sorted(done.stdout.splitlines()), [
            f"[0] 0 0.0#1 {self.net}.1 {self.net}.1 {a}",
            f"[1] 1 0.1#1 {self.net}.1 {self.net}.1 {a}",
            f"[2] 2 1.0#1 {self.net}.2 {self.net}.1 {b}",
            f"[3] 3 1.1#1 {self.net}.2 {self.net}.1 {b}"])
        self.assert_nothing_left()

    def test_address_can_be_found(self):
        options = self.options(f"{self.hosts[0]}:1@{self.net}.1")
        options.remove("--address")
        options.remove(f"{self.net}.254")
        done = run(*options, "--", "/bin/sh", "-c", "echo ${PLIANT_COORDINATOR%:*}")
        self.assertEqual(done.stdout, f"[0] {self.net}.254\n")

    def test_local_and_other_hosts_together(self):
        done = run(*self.options(f"localhost:1,{self.hosts[1]}:2"), "--", "/bin/sh", "-c",
                   "echo $GROUP_RANK $PLIANT_ADDRESS")
        self.assertEqual(sorted(done.stdout.splitlines()),
                         [f"[0] 0 {self.net}.254", f"[1] 1 {self.net}.2", f"[2] 1 {self.net}.2"])

    def test_failure_there_names_the_host(self):
        done = run(*self.options(), "--grace", "0", "--", "/bin/sh", "-c",
                   "[ $RANK = 3 ] && exit 9; sleep 1000", env=self.marked())
        self.assertEqual(done.returncode, 9)
        self.assertRegex(done.stderr, rf"rank 3 \(host {self.hosts[1]}, pid \d+\) exited with "
                                      r"code 9; the job ends")
        self.assert_nothing_left()

    def test_program_missing_there(self):
        done = run(*self.options(), "--", "no-such-program-anywhere")
        self.assertEqual(done.returncode, 127)
        self.assertRegex(done.stderr, "host (" + "|".join(self.hosts) + "): 'no-such-program")

    def test_unknown_host(self):
        done = run(*self.options(f"{self.hosts[0]}:1,nowhere:1"), "--", "/bin/true")
        self.assertEqual(done.returncode, 1)
        self.assertIn("host nowhere: 'ip netns exec nowhere", done.stderr)

    def test_signals_cross_hosts(self):
        job = start(*self.options(), "--", "/bin/sh", "-c",
                    "trap 'echo bye; exit 0' TERM; echo > $DIR/ready.$RANK; "
                    "while :; do sleep 1000 & wait $!; done", env=self.marked())
        wait_until(lambda: self.has(*(f"ready.{r}" for r in range(4))), "all are ready")
        job.send_signal(signal.SIGTERM)
        out, _ = job.communicate(timeout=LIMIT_S)
        self.assertEqual(job.returncode, 0)
        self.assertEqual(sorted(out.splitlines()), [f"[{r}] bye" for r in range(4)])
        self.assert_nothing_left()

    def waiting_job(self):
        job = start(*self.options(), "--grace", "0", "--", "/bin/sh", "-c",
                    "trap '' TERM; echo > $DIR/ready.$RANK; while :; do sleep 1000; done",
                    env=self.marked())
        wait_until(lambda: self.has(*(f"ready.{r}" for r in range(4))), "all are ready")
        return job

    def test_killed_launcher_leaves_nothing_anywhere(self):
        job = self.waiting_job()
        job.kill()
        job.communicate(timeout=LIMIT_S)
        self.assert_nothing_left()

    def test_killed_agent_loses_its_host(self):
        job = self.waiting_job()
        agents = [pid for pid in processes_marked(self.mark) if self.command(pid)[1:2] == ["agent"]]
        self.assertGreaterEqual(len(agents), 2)
        in_second = [pid for pid in agents if self.namespace(pid) == self.hosts[1]
                     and self.name(pid) != "pliant-guard"]
        self.assertEqual(len(in_second), 1)
        os.kill(in_second[0], signal.SIGKILL)
        _, error = job.communicate(timeout=LIMIT_S)
        self.assertEqual(job.returncode, 1)
        self.assertRegex(error, rf"rank 2 \(host {self.hosts[1]}.*\) was lost with its host")
        self.assert_nothing_left()

    @staticmethod
    def command(pid):
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().split("\0")

    @staticmethod
    def name(pid):
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()

    @staticmethod
    def namespace(pid):
        return subprocess.run(["ip", "netns", "identify", str(pid)], capture_output=True,
                              text=True).stdout.strip()


if __name__ == "__main__":
    if not os.access(PROGRAM, os.X_OK):
        sys.exit(f"{PROGRAM} is not there: build it, or set PLIANT_PROGRAM")
    unittest.main()
