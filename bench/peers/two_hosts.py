#!/usr/bin/env python3
"""The all-reduce over two emulated hosts: two network namespaces and a rate-limited veth pair.

Needs root. Pliant, Gloo and Open MPI take turns, and so does a plain TCP stream, which gives the
wire limit: with the ranks of a host reduced first, the tensor crosses the wire once in each
direction.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict

import contenders
import measure
import report

ADDRESSES = ("10.77.0.1", "10.77.0.2")  # exist only inside the namespaces
DEVICE = "wire0"
STREAM_PORT = 47000
WIRE_SHARE_GOAL = {"1gbit": 0.95}  # at 16 MiB
RATIO_GOAL = {"10gbit": 3.0}  # at 16 MiB
GOAL_SIZE = 16 << 20


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


class TwoHosts:
    """The two namespaces; made on entry and removed on exit, whatever happens in between."""

    def __init__(self):
        self.names = [f"pliant{os.getpid()}{letter}" for letter in "ab"]

    def __enter__(self):
        try:
            for name in self.names:
                call("ip", "netns", "add", name)
            call("ip", "link", "add", DEVICE, "netns", self.names[0], "type", "veth",
                 "peer", "name", DEVICE, "netns", self.names[1])
            for name, address in zip(self.names, ADDRESSES):
                call("ip", "-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
                for device in ("lo", DEVICE):
                    call("ip", "-n", name, "link", "set", device, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def limit(self, rate):
        for name in self.names:
            call("tc", "-n", name, "qdisc", "replace", "dev", DEVICE, "root", "tbf",
                 "rate", rate, "burst", "256kb" if rate == "1gbit" else "1mb", "latency", "20ms")

    def inside(self, host, command):
        return ["ip", "netns", "exec", self.names[host], *command]


# The stream that measures the wire: this script again, in each of the namespaces.
def receive():
    with socket.create_server((ADDRESSES[1], STREAM_PORT)) as server:
        server.settimeout(10)
        connection, _ = server.accept()
        with connection:
            buffer = bytearray(1 << 20)
            settled, count, start = time.monotonic() + 0.3, 0, None
            while read := connection.recv_into(buffer):
                now = time.monotonic()
                if now < settled:  # the limiter's first burst, and the sender's search for the rate
                    continue
                if start is None:
                    start = now
                else:
                    count += read
            if start is None:
                raise SystemExit("the stream was too short")
            print(json.dumps({"bytes": count, "seconds": now - start}))


def send(seconds):
    deadline = time.monotonic() + 10
    while True:
        try:
            connection = socket.create_connection((ADDRESSES[1], STREAM_PORT), timeout=5)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    with connection:
        data = bytes(1 << 20)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            connection.sendall(data)


def stream_commands(hosts):
    script = [sys.executable, os.path.abspath(__file__)]
    return [hosts.inside(1, script + ["--role", "receive"]),
            hosts.inside(0, script + ["--role", "send"])]


def openmpi_command(hosts, where, driver, ranks_each, scratch):
    """mpirun reaches the other namespace by an agent; each gets a host name of its own, because
    Open MPI takes ranks of one host name to be on one machine. It cannot see that the two share
    their cores, and would spin without yielding: it is told to yield."""
    agent = os.path.join(scratch, "agent")
    rename = 'hostname "$0" && exec sh -c "$1"'
    with open(agent, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\nshift\n"
                   f"exec ip netns exec {hosts.names[1]} unshare --uts sh -c '{rename}' "
                   f"{hosts.names[1]} \"$*\"\n")
    os.chmod(agent, 0o755)
    slots = ",".join(f"{address}:{ranks_each}" for address in ADDRESSES)
    launch = contenders.mpirun(where.mpirun, [
        "-H", slots, "-np", str(2 * ranks_each), "--mca", "plm_rsh_agent", agent,
        "--mca", "oob_tcp_if_include", DEVICE, "--mca", "btl_tcp_if_include", DEVICE,
        "--mca", "pml", "ob1", "--mca", "mpi_yield_when_idle", "1"])
    return hosts.inside(0, ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"',
                            hosts.names[0], *launch, *driver])


def commands(hosts, where, contender, ranks_each, arguments, scratch):
    driver = [str(where.driver(contender.kind)), "--name", contender.name, *contender.arguments,
              *arguments]
    size = 2 * ranks_each
    if contender.kind == "pliant":
        names = ",".join(f"{name}:{ranks_each}@{address}"
                         for name, address in zip(hosts.names, ADDRESSES))
        return [hosts.inside(0, [str(where.pliant), "run", "-n", str(size), "-H", names,
                                 "--launcher", "ip netns exec {host}", "--no-prefix", "--",
                                 *driver])]
    if contender.kind == "openmpi":
        return [openmpi_command(hosts, where, driver, ranks_each, scratch)]
    return [hosts.inside(rank // ranks_each, driver + [
        "--store", scratch, "--rank", str(rank), "--size", str(size),
        "--address", ADDRESSES[rank // ranks_each]]) for rank in range(size)]


class Comparison:
    def __init__(self, options):
        self.options = options
        self.where = contenders.programs(options)
        self.chosen = [contenders.pliant("registered"), contenders.pliant("plain"),
                       contenders.openmpi("openmpi"), *contenders.GLOO]
        self.absent = {c.name: why for c in self.chosen if (why := self.where.missing(c))}
        self.samples = defaultdict(list)  # (rate, name, bytes) -> [Sample]
        self.goodput = defaultdict(list)  # rate -> bytes a second

    def round(self, hosts, rate, number):
        hosts.limit(rate)
        streamed = measure.run_group(lambda _: stream_commands(hosts)).lines[0]
        self.goodput[rate].append(streamed["bytes"] / streamed["seconds"])
        arguments = ["--sizes", ",".join(map(str, self.options.sizes)), "--batches", "3"]
        for contender in self.chosen if number % 2 == 0 else reversed(self.chosen):
            if contender.name in self.absent:
                continue
            try:
                run = measure.run_group(lambda scratch, it=contender: commands(
                    hosts, self.where, it, self.options.ranks, arguments, scratch))
            except measure.RunFailed as failure:
                self.absent[contender.name] = f"{rate}: {failure}"
                continue
            print(f"round {number + 1} {rate} {contender.name}: {run.seconds:.1f} s",
                  file=sys.stderr)
            for size, batches in measure.samples(run, lambda line: line["bytes"]).items():
                self.samples[rate, contender.name, size] += batches

    def cells(self):
        found = []
        cores = measure.Cores([sample for batches in self.samples.values() for sample in batches])
        for rate in self.options.rates:
            goodput = max(self.goodput[rate])  # whatever else ran can only have slowed it
            for size in self.options.sizes:
                batches = {c.name: self.samples[rate, c.name, size] for c in self.chosen
                           if self.samples.get((rate, c.name, size))}
                state = cores.best_state(batches.values())
                figures = {name: measure.figure(cores.of(state, each), measure.limits(self.options))
                           for name, each in batches.items()}
                found.append({**self._cell(rate, size, size / goodput, figures), "cores": state})
        return found

    def _cell(self, rate, size, limit, figures):
        peers = {n: f for n, f in figures.items() if not n.startswith("pliant")}
        best = min(peers, key=lambda name: peers[name].median, default=None)
        cell = {"rate": rate, "bytes": size, "ranks_each": self.options.ranks,
                "limit_us": limit * 1e6, "best_peer": best, "contenders": {}}
        for name, figure in figures.items():
            entry = {**figure.as_json(), "wire_share": limit / figure.median}
            if name not in peers:
                entry["ratio"] = peers[best].median / figure.median if best else None
                entry["reached"] = reached(rate, size, entry)
            cell["contenders"][name] = entry
        return cell


def reached(rate, size, entry):
    if size != GOAL_SIZE:
        return None
    if rate in WIRE_SHARE_GOAL:
        return entry["wire_share"] >= WIRE_SHARE_GOAL[rate]
    if rate in RATIO_GOAL and entry["ratio"]:
        return entry["ratio"] >= RATIO_GOAL[rate]
    return None


def render(cells):
    rows = [("rate", "size", "time", "least", "contender", "wire limit", "share", "to best peer",
             "goal", "", "cores")]
    for cell in cells:
        for name, entry in cell["contenders"].items():
            goal = ""
            if entry.get("reached") is not None:
                goal = (f"{WIRE_SHARE_GOAL[cell['rate']] * 100:.0f} % of the wire"
                        if cell["rate"] in WIRE_SHARE_GOAL else f"{RATIO_GOAL[cell['rate']]:g}x")
            rows.append((cell["rate"], report.size_text(cell["bytes"]),
                         report.figure_text(entry), report.time_text(entry["min_us"]), name,
                         report.time_text(cell["limit_us"]),
                         f"{entry['wire_share'] * 100:.0f} %", report.ratio_text(
                             entry.get("ratio")), goal, report.verdict(entry.get("reached")),
                         cell["cores"] or "mixed"))
    return report.columns(rows)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=lambda text: text.split(","), default=["1gbit", "10gbit"])
    parser.add_argument("--sizes", type=lambda text: [int(t) for t in text.split(",")],
                        default=[1 << 20, GOAL_SIZE], help="in bytes")
    parser.add_argument("--ranks", type=int, default=4, help="on each host")
    parser.add_argument("--rounds", type=int, default=3)
    measure.add_limit_options(parser)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--role", choices=("receive", "send"), help=argparse.SUPPRESS)
    contenders.add_program_options(parser)
    return parser.parse_args()


def main():
    options = parse_arguments()
    if options.role:
        receive() if options.role == "receive" else send(1.3)
        return 0
    if os.geteuid() != 0:
        sys.exit("two_hosts.py makes network namespaces and needs root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed
    comparison = Comparison(options)
    with TwoHosts() as hosts:
        for number in range(options.rounds):
            for rate in options.rates:
                comparison.round(hosts, rate, number)
    cells = comparison.cells()
    print(f"all-reduce, float32 sum, 2 emulated hosts x {options.ranks} ranks on "
          f"{os.cpu_count()} cores; {options.rounds} interleaved rounds, medians\n")
    print(render(cells))
    for rate, values in comparison.goodput.items():
        print(f"a plain TCP stream at {rate}: {max(values) * 8 / 1e6:.0f} Mbit/s")
    for name, why in comparison.absent.items():
        print(f"absent: {name}: {why}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"two_hosts": cells, "absent": comparison.absent}, file, indent=1)
    return 0 if any(cell["contenders"] for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
