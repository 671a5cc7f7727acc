#!/usr/bin/env python3
"""Three servers of the demo model as docs/fleet.md has them: management ports, HAProxy with agent checks, and what
contrib/ has for Prometheus and Grafana, against the metrics that there are; Redis for K/V that all share. One is killed, one
is cut off, Redis is far, cut off and slow, and other weights are rolled out.
usage: fleet_test.py RIPTIDE.
Nothing leaves the machine. Each server and Redis have a network namespace, which only root can make: without, all is on
loopback, a folder is shared, and nothing is cut off. What needs haproxy, promtool, prometheus or redis-server is skipped
where they are not installed.
"""
import collections
import concurrent.futures
import contextlib
import csv
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

from fleet_net import Network
from shared_places import Redis
from test_support import (HOST, PATIENCE, ROOT, Server, answers, ask, attempt, expect, free_port, get, installed, riptide, running, scratch, servers, skipped,
                          stream, told, wait_for)

HOSTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]  # in contrib/
NAMES = ["one", "two", "three"]
STORE, PASSWORD = 3, "hush"  # the machine of Redis, behind those of the servers
work = scratch("fleet")
API, MANAGEMENT, AGENT = free_port(), free_port(), free_port()
replicas, redis, network = [], None, None


class Replica(Server):
    """One as docs/fleet.md has it: with the ports of management and of HAProxy's agent."""

    def __init__(self, *flags, host=HOST, port=None, management=None, agent=None, ctx=2048, device="cpu", **more):
        self.management, self.agent = management or free_port(), agent or free_port()
        super().__init__("--device", device, "--threads", 1, "--ctx", ctx, "--quiet", "--management-host", host, "--management-port", self.management,
                         "--agent-port", self.agent, *flags, host=host, port=port, **more)

    def metric(self, name, *labels):
        """The value of one without labels; else the sum of those with one of these labels, as far as they are there."""
        page = get(self.management, "/metrics", host=self.host)
        if not labels:
            return float(re.search(rf"(?m)^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", page)[1])
        return sum(map(float, re.findall(rf"(?m)^{re.escape(name)}(?:{'|'.join(map(re.escape, labels))}) (\S+)$", page)))


def contrib(name, changes):
    """A copy of a file in contrib/ with these parts replaced, each of which must be there once."""
    text, copy = (ROOT / "contrib" / name).read_text(), work / f"{free_port()}-{name}"
    for old, new in changes:
        expect(text.count(old) == 1, f"contrib/{name} has {old}")
        text = text.replace(old, new)
    copy.write_text(text)
    return copy


def families(page):
    return dict(re.findall(r"(?m)^# TYPE (\S+) (\S+)$", page))


def expressions():
    """All PromQL of contrib/, by where it stands."""
    for number, line in enumerate((ROOT / "contrib/alerts.yml").read_text().splitlines(), 1):
        if match := re.match(r"\s*expr: (.*)", line):
            yield f"alerts.yml:{number}", match[1]
    for panel in json.loads((ROOT / "contrib/grafana.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield f"grafana.json: {panel['title']}", target["expr"].replace("$__rate_interval", "1m")


def names_of_metrics(page):
    """What the rules and the dashboard ask for is there, and of a kind that they can ask for."""
    known, asked = families(page), collections.Counter()
    for where, expression in expressions():
        for name in re.findall(r"\b(?:riptide_|vllm:)\w+", expression):
            asked[where] += 1
            family = re.sub(r"_(bucket|sum|count)$", "", name)
            expect(name in known or known.get(family) == "histogram", f"{where}: {name} is a metric")
        if "rate(" in expression or "increase(" in expression:
            expect(re.search(r"(?:rate|increase)\(\w+_(?:total|bucket)\[", expression), f"{where}: rates are of counters")
        expect(asked[where] > 0 or expression.startswith("up{"), f"{where} asks for a metric")


def values():
    """What contrib/ has for clusters: flags that there are, and probes that are answered at the port that they name."""
    flags = subprocess.run([riptide, "serve", "--help-all"], capture_output=True, text=True).stdout
    text = (ROOT / "contrib/llm-d.yml").read_text()
    for flag in re.findall(r"(?m)^ +- (--[a-z-]+)", text):
        expect(re.search(rf"{flag}\b", flags), f"contrib/llm-d.yml: {flag} is a flag")
    probes = re.findall(r"Probe: \{httpGet: \{path: (\S+), port: (\d+)\}", text)
    expect(len(probes) == 3 and all(f"--management-port={port}\n" in text for _, port in probes), f"contrib/llm-d.yml: probes {probes}")
    for path, _ in probes:
        expect(answers(MANAGEMENT, path, replicas[0].host), f"contrib/llm-d.yml: {path} answers")
    try:
        import yaml
    except ImportError:
        skipped.append("values for charts as YAML: python3-yaml is not installed")
        return
    pods, picker = yaml.safe_load_all(text)
    plugins = yaml.safe_load(picker["inferenceExtension"]["pluginsCustomConfig"]["riptide.yaml"])
    known = [plugin["type"] for plugin in plugins["plugins"]]
    named = [one["pluginRef"] for one in plugins["schedulingProfiles"][0]["plugins"]]
    expect(set(named) <= set(known) and "token-producer" in known, f"contrib/llm-d.yml: {named} of {known}")
    labels = picker["inferencePool"]["modelServers"]["matchLabels"]
    expect(labels.items() <= pods["modelArtifacts"]["labels"].items(), f"contrib/llm-d.yml: the pool finds the pods by {labels}")
    router = yaml.safe_load((ROOT / "contrib/production-stack.yml").read_text())["routerSpec"]
    expect(len(router["staticBackends"].split(",")) == len(router["staticModels"].split(",")), "contrib/production-stack.yml: a name for each address")


def promtool(page):
    if not installed("promtool", "rules and metrics as Prometheus reads them"):
        return
    for kind, file in (("config", "prometheus.yml"), ("rules", "alerts.yml")):
        done = subprocess.run(["promtool", "check", kind, ROOT / "contrib" / file], capture_output=True, text=True)
        expect(done.returncode == 0, f"promtool check {kind}: {done.stdout} {done.stderr}")
    own = "".join(line + "\n" for line in page.splitlines() if "vllm:" not in line)
    done = subprocess.run(["promtool", "check", "metrics"], input=own, capture_output=True, text=True)
    expect(done.returncode == 0, f"promtool has nothing to say of our own names: {done.stdout} {done.stderr}")
    # Of the others it may only say that names have no colons, and end in no words of other kinds: they are as they are.
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True)
    lint = [line for line in done.stderr.splitlines() if not line.startswith("vllm:")]
    expect(done.returncode in (0, 3) and not lint, f"promtool reads the whole page: {done.returncode} {lint}")
    done = subprocess.run(["promtool", "check", "metrics"], input="a{ 1\n", capture_output=True, text=True)
    expect(done.returncode == 1, "promtool refuses what is no page")


def haproxy_stats(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        sock.sendall(b"show stat\n")
        text = b""
        while part := sock.recv(65536):
            text += part
    rows = csv.DictReader(text.decode().lstrip("# ").splitlines())
    return {row["svname"]: row for row in rows if row["pxname"] == "replicas"}


def haproxy():
    if not installed("haproxy", "three servers behind HAProxy"):
        return
    done = subprocess.run(["haproxy", "-c", "-f", ROOT / "contrib/haproxy.cfg"], capture_output=True, text=True)
    expect(done.returncode == 0, f"haproxy takes contrib/haproxy.cfg: {done.stdout} {done.stderr}")
    front, stats = free_port(), work / "stats"
    config = contrib("haproxy.cfg", [("127.0.0.1:8480", f"127.0.0.1:{front}"), ("global\n", f"global\n    stats socket {stats} level admin\n"),
                                     ("\nbackend replicas\n", "\nbackend replicas\n    http-response set-header x-replica %s\n"),
                                     ("srvtcpka-idle 10s", "srvtcpka-idle 1s"), ("srvtcpka-intvl 5s", "srvtcpka-intvl 1s"),
                                     *((f"{was}:8484 agent-port 8486", f"{replica.host}:{API} agent-port {AGENT}") for was, replica in zip(HOSTS, replicas))])
    with running("haproxy", "-f", str(config), "-db"):
        def seen(number, **facts):
            if not stats.exists():
                return False
            row = haproxy_stats(stats)[NAMES[number]]
            return all(row[key].startswith(value) for key, value in facts.items())

        def ready(number):
            expect(wait_for(lambda: seen(number, status="UP", agent_status="L7OK", weight="100")), f"HAProxy finds {NAMES[number]} ready, and all of it free")
        for number in range(3):
            ready(number)
        sessions_stay(front)
        weight_follows_load(lambda **facts: seen(1, **facts))
        talks = [Talk(lambda *words: ask(front, *words), number) for number in range(9)]
        for talk in talks:
            talk.turn()
        all_written()
        killed(front, talks)
        replicas[0].start()
        ready(0)
        expect(wait_for(lambda: replicas[0].ask("/v1/completions", {"prompt": "x", "max_tokens": 1}) and replicas[0].metric("riptide_shared_ready") == 1), "who is back shares again")
        if not network.why:
            cut_off(front, talks, seen)
            ready(1)
        if redis:
            store_on_a_link()
        rolled(front, ready)


def killed(front, talks):
    replicas[0].kill()
    gave_up = [talk.number for talk in talks if not found_when_moved(talk, replicas[1:])]
    if gave_up:
        print(f"conversations {gave_up}: on a busy machine the place answered too late to be waited for, and in time when asked again")
    moved = shared_requests(replicas[1:], "fetched")
    expect(moved >= 1, f"conversations of the killed server come from the shared place: {moved}")
    for number in range(12):
        reply = ask(front, "/v1/completions", {"prompt": "x", "max_tokens": 1}, {"x-session-id": f"s{number}"})
        expect("choices" in reply, "the others take over when one is killed")


def session_of(front, replica):
    """One that HAProxy gives to it."""
    for number in range(100):
        session = {"x-session-id": f"of {number}"}
        if stream(HOST, front, {"prompt": "x", "max_tokens": 1}, session)[0] == replica:
            return session
    raise RuntimeError(f"no session is {replica}'s")


def cut_off(front, talks, seen):
    """A server that nobody reaches: its answers break off, others take over."""
    session = session_of(front, "two")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        begun = threading.Event()
        all_written()
        talking = pool.submit(stream, HOST, front, {"prompt": "x", "max_tokens": 1900, "ignore_eos": True}, session, lambda _: begun.set())
        expect(begun.wait(PATIENCE), "a server answers")
        network.cut(1)
        began, ended = time.monotonic(), []
        talking.add_done_callback(lambda _: ended.append(time.monotonic() - began))
        replica, _, whole = stream(HOST, front, {"prompt": "x", "max_tokens": 1}, session)
        first = time.monotonic() - began
        expect(whole and replica != "two" and first < 10, f"a session whose server is cut off goes on elsewhere: {replica}, {first:.1f} s")
        expect(wait_for(lambda: seen(1, status="DOWN")), "HAProxy notices")
        for talk in talks:
            found_when_moved(talk, [replicas[0], replicas[2]])
        expect(not talking.result()[2], "an answer that was under way is cut off, too")
        print(f"a server is cut off: its sessions go on after {first:.1f} s, what it was saying ends after {ended[0]:.1f} s")
    network.join(1)


def store_on_a_link():
    """Redis behind a link that is far, cut, whole again, and slow."""
    one, two, three = replicas
    talk = Talk(one.ask, 100)
    talk.turn()
    all_written()
    alone = max(timed(Talk(three.ask, number).turn)[0] for number in (101, 102))

    def again():
        """The next turn at a server that has forgotten: seconds and tokens that were cached."""
        two.ask("/flush_cache", {})
        moved = Talk(two.ask, 100)
        moved.messages, moved.tokens = [*talk.messages], talk.tokens
        return timed(moved.turn)

    def found():
        return again()[1] >= 0.9 * talk.tokens
    print(f"the store behind {network.shape(STORE) or 'its link as it is'}")
    expect(wait_for(found), "a far store's K/V are found")
    network.whole(STORE)
    network.cut(STORE)
    for _ in range(4):
        seconds, _ = again()
        expect(seconds < 2 * alone + 1, f"a store that is cut off: {seconds:.2f} s, and {alone:.2f} s alone")
    expect(two.metric("riptide_shared_ready") == 0, "a store that is cut off is not asked any more")
    network.join(STORE)
    expect(wait_for(found), "a store that is back is used again")
    before = shared_requests([two], "fetched")
    slow = network.shape(STORE, "8mbit")
    for _ in range(4 if slow else 0):
        seconds, _ = again()
        expect(seconds < 4 * alone + 1, f"a store behind {slow}: {seconds:.2f} s, and {alone:.2f} s alone")
    expect(not slow or shared_requests([two], "fetched") == before, f"nothing is fetched from behind {slow}")
    network.whole(STORE)


def rolled(front, ready):
    """Other weights, server after server as docs/fleet.md says it: no request fails, no answer breaks off, and nothing of the
    old weights is found."""
    told = {"messages": [{"role": "user", "content": "Tell me about tea. " * 40}], "max_tokens": 12, "temperature": 0}
    before, path = ask(front, "/v1/chat/completions", told), work / "other.gguf"
    subprocess.run([riptide, "quantize", ROOT / "models/demo/laguna-demo.gguf", path, "--type", "q2_k"], check=True, capture_output=True)
    over, asked = threading.Event(), []

    def asks():
        while not over.is_set():
            asked.append(stream(HOST, front, {"prompt": "x", "max_tokens": 2, "ignore_eos": True}, {"x-session-id": f"r{len(asked)}"}))

    def one_by_one():
        for number, replica in enumerate(replicas):
            begun = threading.Event()
            talking = pool.submit(stream, HOST, front, {"prompt": "x", "max_tokens": 600, "ignore_eos": True}, session_of(front, NAMES[number]), lambda _: begun.set())
            expect(begun.wait(PATIENCE), f"{NAMES[number]} answers")
            replica.end()
            _, tokens, whole = talking.result()
            expect(whole and tokens >= 600, f"an answer of {NAMES[number]}, which drains, comes to its end: {tokens}")
            replica.command.append(str(path))
            replica.start()
            replica.ready()
            ready(number)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asking = pool.submit(asks)
        try:
            one_by_one()
        finally:
            over.set()
        asking.result()
    broken = [one for one in asked if not one[2]]
    print(f"other weights, server after server: {len(asked)} requests, {len(broken)} failed")
    expect(len(asked) > 30 and not broken, f"no request fails meanwhile: {broken}")
    with Replica(path) as reference:
        expected = reference.ask("/v1/chat/completions", told)["choices"][0]["message"]
    expect(expected != before["choices"][0]["message"], "other weights have other words")
    after = [replica.ask("/v1/chat/completions", told) for replica in replicas]
    expect(all(reply["choices"][0]["message"] == expected for reply in after), f"the new weights' words: {[reply['choices'][0] for reply in after]}, not {expected}")
    expect(after[0]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "nothing of the old weights is found")


class Talk:
    """A conversation; its prompts are some 900 tokens and more."""
    def __init__(self, ask, number):
        self.ask, self.number, self.tokens = ask, number, 0
        self.messages = [{"role": "system", "content": f"Conversation {number}. " + "Say what you mean, and be kind. " * 80}]

    def turn(self):
        """Tokens that were found in the cache."""
        self.before = self.tokens
        self.messages.append({"role": "user", "content": "Tell me about tea."})
        reply = self.ask("/v1/chat/completions", {"messages": self.messages, "max_tokens": 8}, {"x-session-id": f"talk {self.number}"})
        self.messages.append(reply["choices"][0]["message"])
        self.tokens = reply["usage"]["prompt_tokens"]
        return reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    def take_back(self):
        """The last turn."""
        del self.messages[-2:]
        self.tokens = self.before


def shared_requests(left, *results):
    return sum(replica.metric("riptide_shared_requests_total", *(f'{{result="{result}"}}' for result in results)) for replica in left)


def found_when_moved(talk, left):
    """Whether at once, at the servers that are left. Where a fetch was given up as late, or the place is not asked since several
    were, it is tried again, until it is found."""
    until, first = time.monotonic() + PATIENCE, True
    while True:
        before, given_up = talk.tokens, shared_requests(left, "late", "slower")
        cached = talk.turn()
        late = shared_requests(left, "late", "slower") > given_up or any(replica.metric("riptide_shared_ready") == 0 for replica in left)
        found = cached >= 0.9 * before
        if found or not late or time.monotonic() > until:
            expect(found, f"conversation {talk.number}: {cached} of {before} tokens cached when its server is gone, {'late' if late else 'not late'}")
            return first
        first = False
        for replica in left:  # so that only the shared place has it
            replica.ask("/flush_cache", {})
        talk.take_back()


def all_written():
    """What has been computed is in the shared place."""
    def held():
        return redis.ask("DBSIZE") if redis else sum(1 for path in (work / "shared").rglob("*.rec"))

    def settled():
        before = held()
        time.sleep(0.5)
        return held() == before
    wait_for(settled)


def timed(what):
    began = time.monotonic()
    out = what()
    return time.monotonic() - began, out


def sessions_stay(front):
    used = collections.Counter()
    for number in range(24):
        before = [replica.metric("riptide_requests_submitted_total") for replica in replicas]
        for _ in range(2):
            ask(front, "/v1/completions", {"prompt": "x", "max_tokens": 1}, {"x-session-id": f"session {number}"})
        gained = [replica.metric("riptide_requests_submitted_total") - was for replica, was in zip(replicas, before)]
        expect(sorted(gained) == [0, 0, 2], f"a session stays on one server: {gained}")
        used[gained.index(max(gained))] += 1
    expect(len(used) == 3, f"sessions spread over the servers: {used}")


@contextlib.contextmanager
def held(replica):
    """An answer that runs, for as long as its server is paused."""
    body = json.dumps({"prompt": "x", "max_tokens": 1900, "ignore_eos": True, "stream": True})

    def busy():
        client = http.client.HTTPConnection(replica.host, API, timeout=PATIENCE)
        client.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        stream = client.getresponse()
        stream.readline()
        replica.ask("/pause", {})
        load = ask(MANAGEMENT, "/v1/loads", host=replica.host)["loads"][0]
        if load["num_running_reqs"] == 1:
            return client
        replica.ask("/resume", {})  # it had ended
        client.close()
        return None
    client = wait_for(busy)
    expect(client, "a server is busy")
    try:
        yield
    finally:
        if client:
            client.close()
        replica.ask("/resume", {})


def weight_follows_load(seen):
    with held(replicas[1]):
        expect(wait_for(lambda: seen(weight="25")), "a server without a free place has a quarter of its weight")
    expect(wait_for(lambda: seen(weight="100")), "and all of it when it is free again")


def prometheus():
    if not installed("prometheus", "three servers scraped by Prometheus"):
        return
    config = contrib("prometheus.yml", [("scrape_interval: 5s", "scrape_interval: 1s"), ("evaluation_interval: 15s", "evaluation_interval: 1s"),
                                        ("- alerts.yml", f"- {ROOT}/contrib/alerts.yml"),
                                        *((f"{was}:8485", f"{replica.host}:{MANAGEMENT}") for was, replica in zip(HOSTS, replicas))])
    port = free_port()
    with running("prometheus", f"--config.file={config}", f"--storage.tsdb.path={work}/tsdb",
                 f"--web.listen-address=127.0.0.1:{port}"):
        def query(expression):
            reply = ask(port, "/api/v1/query?query=" + urllib.parse.quote(expression))
            return reply["data"]["result"] if reply["status"] == "success" else None
        expect(wait_for(lambda: answers(port, "/-/ready")), "Prometheus gets ready")
        expect(wait_for(lambda: len(query('up{job="riptide"} == 1')) == 3), "it scrapes all three")
        for where, expression in expressions():
            if where.startswith("grafana"):
                expect(wait_for(lambda expression=expression: query(expression)), f"{where} shows something")
            else:
                expect(query(expression) is not None, f"{where} is a query")

        def running_now(count):
            total = query("sum(vllm:num_requests_running)")
            return total and float(total[0]["value"][1]) == count
        expect(wait_for(lambda: running_now(0)), "nothing runs")
        with held(replicas[0]), held(replicas[2]):
            expect(wait_for(lambda: running_now(2)), "two answers that run are two to Prometheus")
        expect(wait_for(lambda: running_now(0)), "and then none")


def redis_in_its_place():
    """None: there is none here, and a folder is shared."""
    if not installed("redis-server", "three servers that share K/V through Redis"):
        return None
    refusal = subprocess.run([riptide, "serve", "--port", "0", "--shared-cache", "redis://", "--shared-cache-key", work / "secret"],
                             stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE).stderr
    if "built without hiredis" in refusal:
        skipped.append("three servers that share K/V through Redis: riptide was built without hiredis")
        return None
    return Redis(work, PASSWORD, network.hosts[STORE], network.at(STORE), "1gb")


def start():
    """Three servers, each at a machine of its own where that can be had."""
    global redis
    if network.why:
        skipped.append(f"servers that are cut off, and a store behind a slow link: no network namespaces here: {network.why}")
    else:
        redis = redis_in_its_place()
    place = f"redis://{redis.host}:{redis.port}" if redis else f"dir:{work}/shared"
    for number, host in enumerate(HOSTS if network.why else network.hosts[:3]):
        replicas.append(Replica("--max-running", 1, "--admin", "--allow-no-auth", "--shared-cache", place, "--shared-cache-key", work / "secret",
                                host=host, port=API, management=MANAGEMENT, agent=AGENT, at=() if network.why else network.at(number),
                                env={**os.environ, "REDISCLI_AUTH": PASSWORD}))


def main():
    (work / "secret").write_text(os.urandom(32).hex() + "\n")
    global network
    network = Network(4)
    try:
        start()
        with servers(*replicas):
            for replica in replicas:
                expect(answers(MANAGEMENT, "/readyz", replica.host), f"the server at {replica.host} is ready")
                replica.ask("/v1/completions", {"prompt": "one two three", "max_tokens": 3})
            page = get(MANAGEMENT, "/metrics", host=replicas[0].host)
            attempt(lambda: names_of_metrics(page), lambda: promtool(page), values, prometheus, haproxy)
    finally:
        if redis:
            redis.kill()
    return told("three servers")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
