#!/usr/bin/env python3
"""What a fleet of the demo model's servers bears: weights that change, a kill under 64 streams, killed writers of the
shared folder and a folder that fails in every way, 200 scrapes a second, collectors that are not there, routers that
register, and words of a prompt where none may be. usage: fleet_faults_test.py RIPTIDE [--long] [--only PART]

Nothing leaves loopback. --long: 1,000 kills, longer measurements and their bounds (tools/fleet_night.sh); without it what
fits into two minutes, with bounds that a busy machine holds. What cannot be done here is skipped, and said.
"""
import argparse
import concurrent.futures
import contextlib
import http.client
import http.server
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time

from fleet_test import HOSTS, Replica, contrib, haproxy_stats
from test_support import HOST, PATIENCE, attempt, cost_beside, expect, free_port, get, installed, running, scratch, servers, skipped, stream, told, wait_for

options = argparse.Namespace(long=False, only="")
work = scratch("faults")
# Servers that meet a folder's permissions may not be root, who passes them.
OTHER = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}


def talk(number, sentences=80):
    return [{"role": "system", "content": f"Conversation {number}. " + "Say what you mean, and be kind. " * sentences}]


def turn(ask, messages, headers=None, tokens=8):
    """Answers the next question: (text, cached tokens, prompt tokens); the conversation grows."""
    messages.append({"role": "user", "content": f"Tell me about tea, part {len(messages)}."})
    reply = ask("/v1/chat/completions", {"messages": messages, "max_tokens": tokens, "temperature": 0}, headers)
    messages.append(reply["choices"][0]["message"])
    usage = reply["usage"]
    return reply["choices"][0]["message"]["content"], usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


# Behind HAProxy


@contextlib.contextmanager
def behind_haproxy(*flags):
    """Three servers as contrib/haproxy.cfg has them, and the name of who answered in each reply: (port, their processes)."""
    started, front = {name: Replica(*flags) for name in ("one", "two", "three")}, free_port()
    config = contrib("haproxy.cfg", [("127.0.0.1:8480", f"127.0.0.1:{front}"), ("global\n", f"global\n    stats socket {work}/stats level admin\n"),
                                     ("\nbackend replicas\n", "\nbackend replicas\n    http-response set-header x-replica %s\n"),
                                     *((f"server {name} {host}:8484 agent-port 8486", f"server {name} {HOST}:{server.port} agent-port {server.agent}")
                                       for host, (name, server) in zip(HOSTS, started.items()))])
    with servers(*started.values()), running("haproxy", "-f", str(config), "-db"):
        expect(wait_for(lambda: all(weight(name) == "100" for name in started)), "HAProxy finds all three ready")
        yield front, started


def weight(name):
    try:
        row = haproxy_stats(work / "stats")[name]
        return row["weight"] if row["status"].startswith("UP") and row["agent_status"] == "L7OK" else None
    except OSError:
        return None


class Busy:
    """Answers that take most places of a server until it is let go."""

    def __init__(self, server):
        self.over = threading.Event()
        body = {"prompt": "x", "max_tokens": 1500, "ignore_eos": True}

        def again():
            while not self.over.is_set():
                stream(HOST, server.port, body)
        self.threads = [threading.Thread(target=again, daemon=True) for _ in range(3)]
        for thread in self.threads:
            thread.start()

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()


def answered_by(front, number, messages):
    """A turn through HAProxy: (replica, cached, prompt tokens)."""
    named = {}

    def ask(path, body, headers):
        client = http.client.HTTPConnection(HOST, front, timeout=PATIENCE)
        client.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
        reply = client.getresponse()
        named["replica"], answer = reply.getheader("x-replica"), json.loads(reply.read())
        client.close()
        return answer
    _, cached, tokens = turn(ask, messages, {"x-session-id": f"talk {number}"})
    return named["replica"], cached, tokens


def weights_that_change(front, started):
    """T6: session hash with agent weights; each replica's weight changes twice. Second turns of sessions that stayed find
    what they would on one replica; those that moved are counted apart."""
    count = 60 if options.long else 24
    alone, talks = [], {number: talk(number) for number in range(count)}
    for number in range(4):
        messages = talk(100 + number)
        turn(started["one"].ask, messages)
        alone.append((lambda found: found[1] / found[2])(turn(started["one"].ask, messages)))
    first = {number: answered_by(front, number, messages)[0] for number, messages in talks.items()}
    expect(len(set(first.values())) == 3, f"conversations spread over three replicas: {first}")
    stayed, moved = [], []
    for i, (name, server) in enumerate(started.items()):
        busy = Busy(server)
        expect(wait_for(lambda name=name: weight(name) == "25"), f"{name} has a quarter of its weight while it is busy")
        for number in range(i, count, 3):
            replica, cached, tokens = answered_by(front, number, talks[number])
            (stayed if replica == first[number] else moved).append(cached / tokens)
            expect(replica == first[number] or first[number] == name, f"only conversations of {name} move: {number} from {first[number]}")
        busy.end()
        expect(wait_for(lambda name=name: weight(name) == "100"), f"{name} has all of its weight again")
    share = statistics.mean(stayed) / statistics.mean(alone)
    print(f"hit share of second turns, of that on one replica: {share:.3f} of {len(stayed)} that stayed"
          + (f", {statistics.mean(moved) / statistics.mean(alone):.3f} of {len(moved)} that moved" if moved else ", none moved"))
    expect(share >= 0.95, f"second turns of conversations that stayed find what they would on one replica: {share:.3f}")
    back = sum(answered_by(front, number, messages)[0] == first[number] for number, messages in talks.items())
    expect(back == count, f"all conversations are back where they began: {back} of {count}")


def killed_under_streams(front, started):
    """T6: kill -9 of one under 64 streams. Only its streams break; new ones go on elsewhere within 2 s."""
    seen, lock = {}, threading.Lock()

    def one(number):
        def first(replica):
            with lock:
                seen[number] = replica
        return stream(HOST, front, {"prompt": f"stream {number}", "max_tokens": 300, "ignore_eos": True}, {"x-session-id": f"s{number}"}, first)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        streams = [pool.submit(one, number) for number in range(64)]
        expect(wait_for(lambda: len(seen) == 64), f"64 streams begin: {len(seen)}")
        running = [number for number, each in enumerate(streams) if not each.done() and seen[number] == "two"]
        started["two"].kill()
        began, slowest = time.monotonic(), 0.0
        for number in running[:6]:  # the sessions whose replica has gone
            at = time.monotonic()
            replica, tokens, whole = stream(HOST, front, {"prompt": "x", "max_tokens": 1}, {"x-session-id": f"s{number}"})
            slowest = max(slowest, time.monotonic() - at)
            expect(whole and tokens > 0 and replica != "two", f"session s{number} goes on elsewhere: {replica} {tokens} {whole}")
        expect(slowest < 2, f"new requests succeed within 2 s of a kill: {slowest:.2f} s")
        ends = [each.result() for each in streams]
    broken = {number for number, (_, _, whole) in enumerate(ends) if not whole}
    expect(running and broken == set(running), f"only streams of the killed replica break: {sorted(broken)}, expected {running}")
    expect(all(ends[number][1] >= 300 for number in range(64) if number not in broken), "the others have all their tokens")
    print(f"kill -9 under 64 streams: {len(broken)} broke, all of the killed replica; new requests after {slowest * 1000:.0f} ms at most; "
          f"{time.monotonic() - began:.1f} s to the end")


def haproxy():
    if not installed("haproxy", "agent weights, and a kill under 64 streams"):
        return
    with behind_haproxy("--max-running", 4) as (front, started):
        weights_that_change(front, started)
    with behind_haproxy("--max-running", 64) as (front, started):
        killed_under_streams(front, started)


# The shared folder


class Shared:
    """A folder that servers share, and what their answers must be."""

    def __init__(self):
        self.home = scratch("shared")
        self.folder, self.secret = self.home / "shared", self.home / "secret"
        self.folder.mkdir()
        self.secret.write_text(os.urandom(32).hex() + "\n")
        for path in (self.home, self.folder, self.secret):
            if OTHER:
                os.chown(path, OTHER["user"], OTHER["group"])

    def server(self):
        return Replica("--shared-cache", f"dir:{self.folder}", "--shared-cache-key", self.secret, "--cache-ram", 64,
                      env={**os.environ, "HOME": str(self.home), "XDG_CACHE_HOME": str(self.home / "cache")}, **OTHER)

    def records(self):
        return sum(1 for _ in self.folder.rglob("*.rec"))


def killed_writers():
    """T8: a replica is killed at random instants while it writes; its neighbour, that goes on from what it finds, says what
    a server without the shared tier says."""
    kills, rng = 1000 if options.long else 20, random.Random(2026)
    shared, found, wrong = Shared(), 0, 0
    with servers(Replica(), shared.server(), shared.server()) as (plain, writer, reader):
        for kill in range(kills):
            messages = talk(f"{kill % 7} and {kill}", 60)
            other, alone = [*messages], [*messages]
            began = time.monotonic()
            turn(plain.ask, alone)
            patience = 3 * (time.monotonic() - began)
            before = threading.Thread(target=quietly, args=(lambda talked=messages: turn(writer.ask, talked),), daemon=True)
            before.start()
            before.join(rng.random() * patience)
            time.sleep(rng.random() * 0.3)  # of what is published some is not written yet
            writer.kill()
            before.join()
            writer.start()
            other.extend(alone[len(other):])  # what the writer said, or would have
            said, cached, _ = turn(reader.ask, other)
            wrong += said != turn(plain.ask, alone)[0]
            found += cached > 0
            writer.ready()
    print(f"{kills} kills of a writer: {found} conversations found at the neighbour, {wrong} wrong answers")
    expect(wrong == 0, f"no answer is wrong behind {kills} kills: {wrong}")
    expect(found >= kills // 10, f"some of what was written is found: {found} of {kills}")


def quietly(what):
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        what()


def folder_that_fails():
    """T8: two replicas whose folder is full, read-only, unreadable, replaced by a file, gone, and back."""
    shared = Shared()
    small = os.getuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m,mode=777", "riptide", str(shared.folder)],
                                                capture_output=True).returncode == 0
    if not small:
        skipped.append("a shared folder that is full: this machine lets nobody mount a file system")
    number = 0

    def both(what, settled=False):
        """Conversations that begin at one replica and go on at the other: right words, and the most that was found of one."""
        nonlocal number
        shares = []
        for _ in range(6 if options.long else 3):
            number += 1
            messages = talk(f"{what} {number}", 60)
            alone = [*messages]
            turn(one.ask, messages), turn(plain.ask, alone)
            expect(messages == alone, f"{what}: the first turn's words")
            if settled:
                wait_for(quiet)
            said, cached, tokens = turn(two.ask, messages)
            expect(said == turn(plain.ask, alone)[0], f"{what}: the words of a moved conversation")
            shares.append(cached / tokens)
        return max(shares)

    def quiet(seconds=0.4):
        before = shared.records()
        time.sleep(seconds)
        return before == shared.records()
    with servers(Replica(), shared.server(), shared.server()) as (plain, one, two):
        expect(wait_for(lambda: one.metric("riptide_shared_ready") == two.metric("riptide_shared_ready") == 1), "both share what they have")
        # A busy machine may be late for one: whoever asks waits for 10 ms.
        if not expect(wait_for(lambda: both("a folder in order", settled=True) >= 0.8, 20), "conversations that move are found"):
            print(*(line for each in (one, two) for line in get(each.management, "/metrics").splitlines() if line.startswith("riptide_shared")), sep="\n")
        if small:
            filler = shared.folder / "filler"
            with contextlib.suppress(OSError), open(filler, "wb") as out:
                while out.write(bytes(1 << 16)):
                    out.flush()
            both("a full folder")
            filler.unlink()
            subprocess.run(["mount", "-o", "remount,ro", str(shared.folder)], check=True)
            both("a read-only folder")
            subprocess.run(["mount", "-o", "remount,rw", str(shared.folder)], check=True)
            subprocess.run(["umount", "-l", str(shared.folder)], check=True)
            if OTHER:
                os.chown(shared.folder, OTHER["user"], OTHER["group"])
        shared.folder.chmod(0)
        both("an unreadable folder")
        shared.folder.chmod(0o700)
        shutil.rmtree(shared.folder)
        both("a folder that is gone")
        shared.folder.write_text("a file")
        both("a file in its place")
        shared.folder.unlink()
        shared.folder.mkdir()
        if OTHER:
            os.chown(shared.folder, OTHER["user"], OTHER["group"])

        def again():
            with contextlib.suppress(AssertionError):
                messages = talk(f"again {time.monotonic()}", 60)
                turn(one.ask, messages)
                quiet()
                return turn(two.ask, messages)[1] > 0
        expect(wait_for(again), "a folder that is there again is used again")


# Beside decoding


def scrapes_beside_decoding():
    """T4: 200 scrapes a second beside decoding, against decoding alone, in turns."""
    pairs, most = (100, 0.02) if options.long else (12, 0.1)
    scraper = ("import http.client,sys,time\nc=http.client.HTTPConnection('127.0.0.1',int(sys.argv[1]))\nat=0\n"
               "while True:\n c.request('GET','/metrics');c.getresponse().read()\n"
               " now=time.monotonic();at=max(at+0.005,now-0.005);time.sleep(max(0,at-now))\n")
    with servers(Replica()) as (server,), running(sys.executable, "-c", scraper, str(server.management)) as process:
        rates = []

        def scrapes():
            return server.metric("riptide_http_replies_total", '{route="/metrics",status="200"}')

        def beside():
            process.send_signal(signal.SIGCONT)
            before, began = scrapes(), time.monotonic()
            took = server.decode()
            rates.append((scrapes() - before) / (time.monotonic() - began))
            process.send_signal(signal.SIGSTOP)
            return took
        wait_for(lambda: scrapes() > 10)
        process.send_signal(signal.SIGSTOP)
        cost, low, high = cost_beside(server.decode, beside, pairs)
        process.send_signal(signal.SIGCONT)
    print(f"decoding 300 tokens beside {statistics.median(rates):.0f} scrapes/s: {100 * cost:+.1f} % (median of {pairs} pairs; {100 * low:+.1f} to {100 * high:+.1f})")
    expect(statistics.median(rates) > 150 or not options.long, f"200 scrapes a second: {rates}")
    expect((cost if options.long else low) < most, f"scrapes cost decoding less than they may: {100 * cost:.1f} %")


def idle_with_a_full_cache():
    """T4: what the cache keeps beyond answers counts as free; running answers are what the load generator has."""
    with servers(Replica("--kv-tokens", 4096, "--max-running", 8)) as (server,):
        for number in range(8):
            turn(server.ask, talk(number, 60))
        names = ("vllm:kv_cache_usage_perc", "riptide_kv_usage_ratio")  # which are those of the last step
        expect(wait_for(lambda: all(server.metric(name) == 0 for name in names)), "idle, with a full cache, nothing is used")
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            streams = [pool.submit(stream, HOST, server.port, {"prompt": "x", "max_tokens": 700, "ignore_eos": True}) for _ in range(5)]
            expect(wait_for(lambda: server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") == 5), "five answers are five in the metrics")
            expect(all(each.result()[2] for each in streams), "and end")
        expect(wait_for(lambda: server.metric("vllm:num_requests_running") == 0), "then none")


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes spans and never answers."""
    over = threading.Event()

    def do_POST(self):
        self.over.wait(60)

    def log_message(self, *_):
        pass


def collectors():
    """T11: no request is slower by 1 ms because the collector hangs or is not there."""
    hanging = http.server.ThreadingHTTPServer((HOST, 0), Collector)
    hanging.daemon_threads = True
    threading.Thread(target=hanging.serve_forever, daemon=True).start()
    started = [Replica(), Replica("--otlp-endpoint", f"http://{HOST}:{hanging.server_port}"), Replica("--otlp-endpoint", f"http://{HOST}:{free_port()}")]
    with servers(*started):
        times = [[] for _ in started]
        for _ in range(1500 if options.long else 300):
            for server, taken in zip(started, times):
                began = time.monotonic()
                server.ask("/v1/completions", {"prompt": "12 plus 30 is", "max_tokens": 1})
                taken.append(time.monotonic() - began)
        Collector.over.set()
    alone, *traced = [1000 * statistics.median(taken) for taken in times]
    print(f"a request of one token: {alone:.2f} ms; with a collector that hangs {traced[0]:.2f}, with none there {traced[1]:.2f} (medians)")
    expect(max(traced) < alone + 1, f"nobody waits for a collector: {alone:.2f} {traced}")
    hanging.shutdown()


# Who asks


def status(port, path, method="GET", body=None, headers=None):
    client = http.client.HTTPConnection(HOST, port, timeout=PATIENCE)
    client.request(method, path, body, headers or {})
    reply = client.getresponse()
    out = reply.status, reply.read().decode(errors="replace"), dict(reply.getheaders())
    client.close()
    return out


def routers():
    """T5, T12: the steps by which routers of others register a worker, what they ask then, and where keys are asked for;
    no word of a prompt where none may be."""
    (work / "keys").write_text("sesame\n")
    key, canary = {"Authorization": "Bearer sesame"}, "canarybird"
    with servers(Replica("--api-key-file", work / "keys", "--alias", "demo")) as (server,):
        for port, headers in ((server.port, key), (server.management, {})):
            expect(status(port, "/health", headers={})[0] == 200, "SMG: health")
            models = json.loads(status(port, "/v1/models", headers=headers)[1])["data"][0]
            expect(models["id"] == "demo" and models["owned_by"] == "riptide" and models["max_model_len"] == 2048 and models["parent"] is None, f"models: {models}")
            expect(set(json.loads(status(port, "/version", headers=headers)[1])) == {"version"}, "SMG takes who has a version for vLLM")
            page = status(port, "/metrics", headers=headers)[1]
            wanted = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc", "cache_config_info", "lora_requests_info")
            expect(all(f"\nvllm:{name}{{" in page for name in wanted), "what SMG and endpoint pickers read is there")
            load = json.loads(status(port, "/v1/loads?include=core,queues,memory", headers=headers)[1])
            expect({"timestamp", "dp_rank_count", "loads"} <= set(load) and {"dp_rank", "num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens", "num_total_reqs", "num_used_tokens", "gen_throughput",
                   "max_total_num_tokens", "token_usage", "max_running_requests"} <= set(load["loads"][0]), f"loads: {load}")
        for path in ("/v1/models", "/metrics", "/v1/loads", "/server_info", "/v1/chat/completions/render"):
            expect(status(server.port, path, "POST" if "render" in path else "GET", "{}")[0] == 401, f"{path} wants a key at the port of the API")
        probe = status(server.port, "/v1/chat/completions", "POST", json.dumps({"model": "demo", "messages": [{"role": "user", "content": "hello"}], "temperature": 0,
                       "max_tokens": 3}), {"Content-Type": "application/json", **key})
        expect(probe[0] == 200, f"production-stack's probe: {probe[:2]}")
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/tokenize", "/pause", "/sleep"):
            expect(status(server.management, path, "POST", json.dumps({"prompt": canary}), {"Content-Type": "application/json"})[0] == 404, f"the management port has no {path}")
        tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}]
        rng = random.Random(5)
        for number in range(100):
            says = " ".join(rng.choice("read the file and say what it is for tea or coffee".split()) for _ in range(rng.randrange(1, 60)))
            chat = {"model": "demo", "messages": [{"role": "user", "content": f"{canary} {says}"}], "tools": tools[:number % 2], "max_tokens": 1}
            asks = [json.loads(status(server.port, path, "POST", json.dumps(chat), {"Content-Type": "application/json", **key})[1])
                    for path in ("/v1/chat/completions/render", "/v1/chat/completions", "/tokenize")]
            expect(len(asks[0]["token_ids"]) == asks[1]["usage"]["prompt_tokens"] and asks[0]["token_ids"] == asks[2]["tokens"], f"chat {number}: ids are those that are read")
        for path in ("/metrics", "/v1/loads", "/server_info", "/v1/models", "/health", "/version"):
            code, page, headers = status(server.management, path)
            expect(code == 200 and canary not in page + str(headers) and "sesame" not in page, f"{path} has no word of a prompt, nor a key")
        code, _, headers = status(server.port, "/health", headers={"x-request-id": "x" * 10_000})
        expect(code >= 400 or len(headers.get("x-request-id", "")) <= 128, f"a name of 10 kB is refused or replaced: {code}")


PARTS = {"routers": routers, "idle": idle_with_a_full_cache, "collectors": collectors, "scrapes": scrapes_beside_decoding,
         "haproxy": haproxy, "kills": killed_writers, "folder": folder_that_fails}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("riptide")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--only", default="", metavar="PART", help=", ".join(PARTS))
    parser.parse_args(namespace=options)
    for name, part in PARTS.items():
        if options.only in name:
            began = time.monotonic()
            attempt(part)
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return told("what a fleet bears")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
