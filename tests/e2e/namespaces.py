"""Emulated hosts: network namespaces joined by a bridge in a namespace of its own."""

import os
import subprocess


def run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)


def usable():
    """Namespaces need root and iproute2."""
    try:
        run("ip", "netns", "list")
        return os.geteuid() == 0
    except (OSError, subprocess.CalledProcessError):
        return False


class Network:
    """`with Network(3) as net:` has net.hosts[i], net.address(i) and a hub to launch from."""

    def __init__(self, count, mark="plt"):
        self.prefix = f"{mark}{os.getpid() % 100000}"
        self.hub = f"{self.prefix}hub"
        self.hosts = [f"{self.prefix}h{i}" for i in range(count)]
        self.hub_address = "10.77.0.254"

    def address(self, index):
        return f"10.77.0.{index + 1}"

    def __enter__(self):
        try:
            self.build()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def build(self):
        run("ip", "netns", "add", self.hub)
        inside = ("ip", "-n", self.hub)
        run(*inside, "link", "add", "bridge", "type", "bridge")
        run(*inside, "addr", "add", f"{self.hub_address}/24", "dev", "bridge")
        for link in ("bridge", "lo"):
            run(*inside, "link", "set", link, "up")
        for index, host in enumerate(self.hosts):
            run("ip", "netns", "add", host)
            port = f"port{index}"
            run(*inside, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
            run(*inside, "link", "set", port, "master", "bridge")
            run(*inside, "link", "set", port, "up")
            run("ip", "-n", host, "addr", "add", f"{self.address(index)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                run("ip", "-n", host, "link", "set", link, "up")

    def limit(self, index, rate):
        """Limits what the host sends and what it receives, as in '100mbit'."""
        shape = ("tbf", "rate", rate, "burst", "64kb", "latency", "50ms")
        host = self.hosts[index]
        run("tc", "-n", host, "qdisc", "replace", "dev", "eth0", "root", *shape)
        run("tc", "-n", self.hub, "qdisc", "replace", "dev", f"port{index}", "root", *shape)

    def cut_between(self, one, other):
        """Nothing passes between the two hosts any more; the hub reaches both."""
        for here, there in ((one, other), (other, one)):
            run("ip", "-n", self.hosts[here], "route", "add", "blackhole",
                f"{self.address(there)}/32")

    def remove(self):
        for name in (*self.hosts, self.hub):
            subprocess.run(("ip", "netns", "del", name), check=False, capture_output=True)

    def run_command(self, program, slots, options=()):
        """The start of a command line: `pliant run` in the hub, workers on the hosts."""
        return [*self.in_hub(), program, "run", *self.run_options(slots), "--no-prefix", *options]

    def in_hub(self):
        return ["ip", "netns", "exec", self.hub]

    def run_options(self, slots):
        hosts = ",".join(f"{host}:{slots}@{self.address(i)}" for i, host in enumerate(self.hosts))
        return ["-H", hosts, "--address", self.hub_address, "--launcher", "ip netns exec {host}"]
