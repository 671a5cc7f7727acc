"""Machines of a fleet on one machine: network namespaces on a bridge, each with an address, whose links can be cut and
slowed. Needs root, and ip and tc of iproute2.
"""
import atexit
import os
import subprocess


def run(command):
    """Its exit code, and what it says is wrong."""
    try:
        done = subprocess.run(command.split(), capture_output=True, text=True)
        return done.returncode, done.stderr.strip()
    except FileNotFoundError as error:
        return 127, str(error)


class Network:
    """`hosts`: the addresses of so many machines. `why`: it could not be made; "": it is there, until the script ends.
    Addresses are of those that are set apart for tests of networks (198.18.0.0/15)."""

    def __init__(self, count):
        self.name, net = f"rt{os.getpid()}", f"198.18.{os.getpid() % 256}"
        self.hosts, self.why = [f"{net}.{n + 1}" for n in range(count)], ""
        atexit.register(self.close)
        self.ip(f"link add {self.name} type bridge")
        self.ip(f"addr add {net}.254/24 dev {self.name}")
        self.ip(f"link set {self.name} up")
        for n, host in enumerate(self.hosts):
            self.ip(f"netns add {self.name}-{n}")
            self.ip(f"link add {self.name}.{n} type veth peer name eth0 netns {self.name}-{n}")
            self.ip(f"link set {self.name}.{n} master {self.name} up")
            self.ip(f"-n {self.name}-{n} addr add {host}/24 dev eth0")
            for link in ("lo", "eth0"):
                self.ip(f"-n {self.name}-{n} link set {link} up")

    def ip(self, words):
        code, says = run(f"ip {words}")
        self.why = self.why or (says if code else "")

    def at(self, n):
        """What stands before a command that is to run at machine n."""
        return "ip", "netns", "exec", f"{self.name}-{n}"

    def cut(self, n):
        """Nothing arrives at machine n, nor from it, and nobody is told."""
        self.ip(f"link set {self.name}.{n} down")

    def join(self, n):
        self.ip(f"link set {self.name}.{n} up")

    def shape(self, n, rate="1gbit", delay="5ms", loss="1%"):
        """What comes from machine n comes late, no faster, and not all of it: how that was done, or "" if it cannot be.
        Kernels without netem have the rate alone."""
        there = f"tc -n {self.name}-{n} qdisc replace dev eth0 root"
        for what in (f"netem delay {delay} rate {rate} loss {loss}", f"tbf rate {rate} burst 256kb latency 500ms"):
            if run(f"{there} {what}")[0] == 0:
                return what
        return ""

    def whole(self, n):
        """As it was before shape()."""
        run(f"tc -n {self.name}-{n} qdisc del dev eth0 root")

    def close(self):
        for n in range(len(self.hosts)):
            run(f"ip netns del {self.name}-{n}")
        run(f"ip link del {self.name}")
