"""What the scripts here share: checks that are counted, waiting, free ports, requests on loopback, and servers of the
program that is their first argument.
"""
import atexit
import contextlib
import http.client
import json
import math
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOST, PATIENCE = "127.0.0.1", 100
riptide = pathlib.Path(sys.argv[1] if sys.argv[1:] else ROOT / "build/cpu/riptide").resolve()
checks, failures, skipped, given_ports = 0, [], [], set()


def expect(condition, what, done=None):
    """`done`: a process that has ended, shown where the check fails."""
    global checks
    checks += 1
    if not condition:
        failures.append(what)
        print(f"FAILED {what}")
        if done is not None:
            print(f"  exit {done.returncode}\n  stdout: {done.stdout[-1500:]!r}\n  stderr: {done.stderr[-1500:]!r}")
    return condition


def attempt(*parts):
    """Calls each: when one throws, the others are worth knowing, too."""
    for part in parts:
        try:
            part()
        except Exception as error:
            expect(False, f"{part.__name__}: {type(error).__name__}: {error}")


def told(what):
    """What was skipped and how many checks failed; the exit code."""
    for line in skipped:
        print(f"skipped: {line}")
    print(f"{checks} checks of {what}, {len(failures)} failed")
    return 1 if failures else 0


def wait_for(condition, patience=PATIENCE):
    until = time.monotonic() + patience
    while not (found := condition()) and time.monotonic() < until:
        time.sleep(0.02)
    return found


def scratch(prefix):
    """A folder that is gone when the script ends."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"riptide-{prefix}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def installed(program, what):
    if shutil.which(program):
        return True
    skipped.append(f"{what}: {program} is not installed")
    return False


def free_port():
    """One that is free at every address, and was not given before: who was given it may not listen yet."""
    while True:
        with socket.socket() as sock:
            sock.bind(("", 0))
            port = sock.getsockname()[1]
        if port not in given_ports:
            given_ports.add(port)
            return port


def get(port, path, body=None, headers=None, host=HOST):
    """The text of a reply. A body is posted, as JSON."""
    data = None if body is None else json.dumps(body).encode()
    headers = ({} if body is None else {"Content-Type": "application/json"}) | (headers or {})
    with urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}{path}", data, headers), timeout=PATIENCE) as reply:
        return reply.read().decode()


def ask(port, path, body=None, headers=None, host=HOST):
    """A reply that is JSON."""
    return json.loads(get(port, path, body, headers, host))


def stream(host, port, body, headers=None, seen=None):
    """Replica, tokens and whether the stream came to its end. `seen` is told of the replica with the first token."""
    client, tokens, replica = http.client.HTTPConnection(host, port, timeout=PATIENCE), 0, None
    try:
        client.request("POST", "/v1/completions", json.dumps({"stream": True, **body}), {"Content-Type": "application/json", **(headers or {})})
        reply = client.getresponse()
        replica = reply.getheader("x-replica")
        while line := reply.readline():
            if line.startswith(b"data: [DONE]"):
                return replica, tokens, True
            if line.startswith(b"data: "):
                tokens += 1
                if seen and tokens == 1:
                    seen(replica)
    except (OSError, http.client.HTTPException):
        pass
    finally:
        client.close()
    return replica, tokens, False


def answers(port, path="/health", host=HOST):
    with contextlib.suppress(OSError):
        return get(port, path, host=host) is not None
    return False


def thread_times(pid):
    """CPU seconds of all threads; seconds that the busiest, the engine's, waited for a core."""
    threads = [[int(word) for word in one.read_text().split()] for one in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(one[0] for one in threads) / 1e9, max(threads)[1] / 1e9


def cost_beside(alone, beside, pairs):
    """Calls both in turn, each of which gives what it took: the median of beside / alone - 1, and the ends of its interval of
    95 %."""
    ratios = []
    for pair in range(pairs):
        order = (alone, beside) if pair % 2 else (beside, alone)
        took = {each: each() for each in order}
        ratios.append(took[beside] / took[alone] - 1)
    ratios.sort()
    reach = 0.98 * math.sqrt(pairs)
    return statistics.median(ratios), ratios[max(0, int(pairs / 2 - reach))], ratios[min(pairs, math.ceil(pairs / 2 + reach)) - 1]


def ends(process):
    """Whether SIGTERM ends it with status 0."""
    process.terminate()
    try:
        return process.wait(PATIENCE) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait() == 0


class Server:
    """riptide serve on a port of its own, which it keeps when it is started again. In a `with`: ready, and ended in
    order."""

    def __init__(self, *flags, host=HOST, port=None, at=(), **more):
        """`at`: what stands before the command, to run it elsewhere."""
        self.host, self.port, self.more = host, port or free_port(), more
        self.command = [*at, str(riptide), "serve", "--host", host, "--port", str(self.port), *map(str, flags)]
        self.start()

    def start(self):
        self.said, self.killed = tempfile.TemporaryFile(), False
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.said, **self.more)

    def log(self):
        """All that it has said since it was started."""
        return os.pread(self.said.fileno(), 1 << 24, 0).decode("utf-8", "replace")

    def ready(self, patience=PATIENCE):
        says = lambda: re.search(r"(?m)^ready .*\n", self.log())
        wait_for(lambda: self.process.poll() is not None or says(), patience)
        expect(self.process.poll() is None and says(), f"{' '.join(self.command[1:])} gets ready: {self.log()[-1000:]}")
        return self

    def decode(self, tokens=300):
        """Seconds that a new answer took, without those in which the engine's thread waited for a core."""
        (_, waited), began = thread_times(self.process.pid), time.monotonic()
        self.ask("/v1/completions", {"prompt": f"{time.monotonic_ns()} x y z", "max_tokens": tokens, "ignore_eos": True, "temperature": 0})
        return time.monotonic() - began - (thread_times(self.process.pid)[1] - waited)

    def get(self, path, body=None, headers=None):
        return get(self.port, path, body, headers, self.host)

    def ask(self, path, body=None, headers=None):
        return ask(self.port, path, body, headers, self.host)

    def kill(self):
        self.killed = True
        self.process.kill()
        self.process.wait()

    def end(self):
        """Unless it was killed."""
        if self.killed:
            return
        expect(ends(self.process), f"SIGTERM ends a server with status 0: {self.process.returncode} {self.log()[-500:]}")

    def __enter__(self):
        return self.ready()

    def __exit__(self, kind, *_):
        self.end() if kind is None else self.kill()


@contextlib.contextmanager
def servers(*started):
    """All ready; in the end those that still run are ended."""
    try:
        yield [server.ready() for server in started]
        for server in started:
            server.end()
    finally:
        for server in started:
            if server.process.poll() is None:
                server.kill()


@contextlib.contextmanager
def running(*command):
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)
