#!/usr/bin/env python3
"""Three servers of the demo model as docs/fleet.md has them: management ports, HAProxy with agent checks, and what
contrib/ has for Prometheus and Grafana, against the metrics that there are; and a folder for K/V that all share.
usage: fleet_test.py RIPTIDE.
Nothing leaves loopback. What needs haproxy, promtool or prometheus is skipped where they are not installed.
"""
import collections
import contextlib
import csv
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.parse

from test_support import (HOST, PATIENCE, ROOT, Server, answers, ask, attempt, expect, free_port, get, installed, riptide, running, scratch, servers, skipped,
                          told, wait_for)

HOSTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
work = scratch("fleet")
API, MANAGEMENT, AGENT = free_port(), free_port(), free_port()
replicas = []


class Replica(Server):
    """One as docs/fleet.md has it: with the ports of management and of HAProxy's agent."""

    def __init__(self, *flags, host=HOST, port=None, management=None, agent=None, ctx=2048, **more):
        self.management, self.agent = management or free_port(), agent or free_port()
        super().__init__("--device", "cpu", "--threads", 1, "--ctx", ctx, "--quiet", "--management-host", host, "--management-port", self.management,
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
        expect(answers(MANAGEMENT, path, HOST), f"contrib/llm-d.yml: {path} answers")
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
                                     *((f"{host}:8484 agent-port 8486", f"{host}:{API} agent-port {AGENT}") for host in HOSTS)])
    with running("haproxy", "-f", str(config), "-db"):
        def seen(server, **facts):
            if not stats.exists():
                return False
            row = haproxy_stats(stats)[server]
            return all(row[key].startswith(value) for key, value in facts.items())
        names = ["one", "two", "three"]
        for name in names:
            expect(wait_for(lambda name=name: seen(name, status="UP", agent_status="L7OK", weight="100")),
                   f"HAProxy finds {name} ready, and all of it free")
        sessions_stay(front)
        weight_follows_load(lambda **facts: seen("two", **facts))
        talks = [Talk(front, number) for number in range(9)]
        for talk in talks:
            talk.turn()
        wait_for(lambda: written_lately() == written_lately(0.5))
        replicas[0].kill()
        gave_up = [talk.number for talk in talks if not found_when_moved(talk)]
        if gave_up:
            print(f"conversations {gave_up}: on a busy machine the folder answered too late to be waited for, and in time when asked again")
        moved = shared_requests("fetched")
        expect(moved >= 1, f"conversations of the killed server come from the shared folder: {moved}")
        for number in range(12):
            reply = ask(front, "/v1/completions", {"prompt": "x", "max_tokens": 1}, {"x-session-id": f"s{number}"})
            expect("choices" in reply, "the others take over when one is killed")


class Talk:
    """A conversation through HAProxy; its prompts are some 900 tokens and more."""
    def __init__(self, front, number):
        self.front, self.number, self.tokens = front, number, 0
        self.messages = [{"role": "system", "content": f"Conversation {number}. " + "Say what you mean, and be kind. " * 80}]

    def turn(self):
        """Tokens that were found in the cache."""
        self.before = self.tokens
        self.messages.append({"role": "user", "content": "Tell me about tea."})
        reply = ask(self.front, "/v1/chat/completions", {"messages": self.messages, "max_tokens": 8},
                     {"x-session-id": f"talk {self.number}"})
        self.messages.append(reply["choices"][0]["message"])
        self.tokens = reply["usage"]["prompt_tokens"]
        return reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    def take_back(self):
        """The last turn."""
        del self.messages[-2:]
        self.tokens = self.before


def shared_requests(*results):
    """At the servers that are left."""
    return sum(replica.metric("riptide_shared_requests_total", *(f'{{result="{result}"}}' for result in results)) for replica in replicas[1:])


def found_when_moved(talk):
    """Whether at once. A fetch that was given up as late is tried again, until it is found."""
    until, first = time.monotonic() + PATIENCE, True
    while True:
        before, given_up = talk.tokens, shared_requests("late", "slower")
        cached = talk.turn()
        found, late = cached >= 0.9 * before, shared_requests("late", "slower") > given_up
        if found or not late or time.monotonic() > until:
            expect(found, f"conversation {talk.number}: {cached} of {before} tokens cached when a server is killed, {'late' if late else 'not late'}")
            return first
        first = False
        for replica in replicas[1:]:  # so that only the folder has it
            replica.ask("/flush_cache", {})
        talk.take_back()


def written_lately(pause=0.0):
    time.sleep(pause)
    return sum(1 for path in (work / "shared").rglob("*.rec"))


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
                                        ("- alerts.yml", f"- {ROOT}/contrib/alerts.yml"), *((f"{host}:8485", f"{host}:{MANAGEMENT}") for host in HOSTS)])
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


def main():
    (work / "secret").write_text(os.urandom(32).hex() + "\n")
    replicas.extend(Replica("--max-running", 1, "--admin", "--shared-cache", f"dir:{work}/shared", "--shared-cache-key", work / "secret",
                            host=host, port=API, management=MANAGEMENT, agent=AGENT) for host in HOSTS)
    with servers(*replicas):
        for replica in replicas:
            expect(answers(MANAGEMENT, "/readyz", replica.host), f"the server at {replica.host} is ready")
            replica.ask("/v1/completions", {"prompt": "one two three", "max_tokens": 3})
        page = get(MANAGEMENT, "/metrics")
        attempt(lambda: names_of_metrics(page), lambda: promtool(page), values, prometheus, haproxy)
    return told("three servers")


if __name__ == "__main__":
    sys.exit(main())
