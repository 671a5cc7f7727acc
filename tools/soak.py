#!/usr/bin/env python3
"""Streams that last, and what goes on beside them: usage: soak.py SCRIPT_SERVER [--seconds 20] [--streams 64] [--step-ms 20]

64 clients stream answers "0 1 2 ..." one after the other (the first streams one answer for as long as all of this
takes), 512 more wait in the queue, some leave in the middle, some come when the queue is full. A model that recites
makes the tokens, so every text is known. Held: no number lost, repeated or of another stream; no reply but 200 and 429;
each 429 with Retry-After and within 100 ms (99 of 100); /health within 50 ms
(99 of 100); descriptors and threads as before at the end, and memory within 16 MiB of what it was after a third of the
time (nothing is kept for later prompts here: that may grow to its budget). Prints JSON.
"""
import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
parser = argparse.ArgumentParser()
parser.add_argument("script_server")
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--streams", type=int, default=64)
parser.add_argument("--waiting", type=int, default=512)
parser.add_argument("--step-ms", type=float, default=20)
parser.add_argument("--seed", type=int, default=1)
options = parser.parse_args()
random.seed(options.seed)
problems, seen = [], {"tokens": 0, "answers": 0, "left": 0, "refused": 0}

longest = int(options.seconds / options.step_ms * 1000 * 1.2) + 1000  # numbers that cannot be said in this time
lengths = {"ONE-FOR-ALL": longest, "SAY-MANY": 300, "SAY-SOME": 60}
script = [{"has": [word], "reasoning": "", "answer": "", "numbers": count} for word, count in lengths.items()]
folder = pathlib.Path(tempfile.mkdtemp(prefix="riptide-soak-"))
(folder / "script.json").write_text(json.dumps(script))
context = 8192 * (1 + longest * 7 // 8192)
server = subprocess.Popen([options.script_server, ROOT / "models/demo/laguna-demo.gguf", folder / "script.json", "--ctx", str(context),
                           "--kv-tokens", str(context + (options.streams + 8) * 4096), "--max-running", str(options.streams),
                           "--max-queue", str(options.streams + options.waiting), "--step-us", str(int(options.step_ms * 1000)), "--log", "0",
                           "--cache", "0"],
                          stdout=subprocess.PIPE, text=True)
port = int(server.stdout.readline().split()[1])


def facts():
    status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
    return {"rss_mib": int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024, "threads": int(re.search(r"Threads:\s+(\d+)", status)[1]),
            "fds": len(os.listdir(f"/proc/{server.pid}/fd")), "cpu_s": sum(map(int, pathlib.Path(f"/proc/{server.pid}/stat").read_text().split()[13:15])) / os.sysconf("SC_CLK_TCK")}


def problem(text):
    problems.append(text)
    print("FAILED", text[:500], file=sys.stderr)


async def send(method, path, body=None):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    text = json.dumps(body).encode() if body is not None else b""
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                 f"Content-Length: {len(text)}\r\n\r\n".encode() + text)
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    return int(head.split()[1]), head, reader, writer


async def ask(word, leave_after=None):
    """One streamed answer; its text is what the script says, as far as it came."""
    body = {"messages": [{"role": "user", "content": f"{word} {random.randrange(10**9)}"}], "stream": True, "max_tokens": longest * 7,
            "chat_template_kwargs": {"enable_thinking": False}}
    begun = time.monotonic()
    status, head, reader, writer = await send("POST", "/v1/chat/completions", body)
    try:
        if status == 429:
            seen["refused"] += 1
            if "retry-after:" not in head.lower():
                problem(f"429 without Retry-After: {head}")
            return False
        if status != 200:
            problem(f"status {status}: {head}")
            return False
        said, done, reason, events, checked, expected = "", False, None, 0, 0, ""
        number = 0
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                done = True
                continue
            event = json.loads(line[6:])
            if "error" in event:
                problem(f"{word}: {event}")
                return False
            for choice in event["choices"]:
                piece = choice["delta"].get("content") or ""
                said += piece
                reason = choice["finish_reason"] or reason
                if piece:
                    events += 1
            while len(expected) < len(said) and number < lengths[word]:
                expected += f"{number} "
                number += 1
            if not expected.startswith(said) and said.strip() != expected.strip():
                problem(f"{word}: {said[-60:]!r} is not what was expected: {expected[-60:]!r}")
                return False
            cut = max(0, len(said) - 200)  # a stream of an hour is not kept
            said, expected = said[cut:], expected[cut:]
            if leave_after is not None and events >= leave_after:
                seen["left"] += 1
                return True
            if word == "ONE-FOR-ALL" and time.monotonic() > until:
                seen["one_answer_s"], seen["one_answer_numbers"] = time.monotonic() - begun, number
                return True
        seen["tokens"] += events
        seen["answers"] += 1
        if not done or reason != "stop" or number != lengths[word]:
            problem(f"{word}: ended at {number} of {lengths[word]}, {reason}, done {done}")
        return True
    finally:
        writer.close()


async def client():
    while time.monotonic() < until:
        leave = random.randrange(1, 60) if random.random() < 0.1 else None
        try:
            if not await asyncio.wait_for(ask(random.choice(["SAY-MANY", "SAY-SOME"]), leave), until + 3 - time.monotonic()):
                await asyncio.sleep(random.uniform(0.5, 2))
        except asyncio.TimeoutError:  # all go at the end, whatever they wait for
            seen["left"] += 1


def probe(until, pipe):
    """In a process of its own, which has nothing else to do: what /health and a refusal take."""
    health, refusals, wrong = [], [], []
    body = json.dumps({"messages": [{"role": "user", "content": "SAY-SOME"}], "stream": True})
    while time.monotonic() < until:
        for method, path, text in [("GET", "/health", None), ("POST", "/v1/chat/completions", body)]:
            begun = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            took = time.monotonic() - begun
            connection.close()
            if path == "/health":
                health.append(took)
            elif reply.status == 429:
                refusals.append(took)
            if reply.status not in ((200,) if path == "/health" else (200, 429)):
                wrong.append(f"{path} says {reply.status}")
        time.sleep(0.02)
    pipe.send((health, refusals, wrong))


async def overload():
    """Ten times as many as have a place, now and then."""
    while time.monotonic() < until - 2:
        await asyncio.sleep(min(10, options.seconds / 3))
        await asyncio.gather(*(asyncio.wait_for(ask("SAY-SOME", 1), until + 3 - time.monotonic()) for _ in range(200)), return_exceptions=True)


async def run():
    one = asyncio.create_task(ask("ONE-FOR-ALL"))
    await asyncio.gather(*(client() for _ in range(options.streams + options.waiting)), overload(), one)
    await asyncio.sleep(1)

try:
    while urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode().find("\nriptide_ready 1\n") < 0:
        time.sleep(0.05)
    until = time.monotonic() + options.seconds
    mine, theirs = multiprocessing.Pipe()
    prober = multiprocessing.Process(target=probe, args=(until, theirs))
    prober.start()
    before, warm = facts(), {}
    timer = threading.Timer(options.seconds / 3, lambda: warm.update(facts()))
    timer.start()
    asyncio.run(run())
    timer.join()
    after = facts()
    health, refusals, wrong = mine.recv()
    prober.join()
    for text in wrong:
        problem(text)
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    number = lambda name: float(re.search(rf"^riptide_{name} (\S+)$", metrics, re.M)[1])
    left = number("requests_waiting") + number("requests_running")
    if left or number("answers_failed_total"):
        problem(f"{left} requests are left, {number('answers_failed_total')} have failed")
    if after["threads"] != before["threads"] or after["fds"] > before["fds"] + 4:
        problem(f"threads and descriptors: {before}, {after}")
    if after["rss_mib"] > warm["rss_mib"] + 16:
        problem(f"memory: {warm['rss_mib']:.1f} MiB after a third of the time, {after['rss_mib']:.1f} at the end")
    p99 = statistics.quantiles(health, n=100)[98]
    if p99 > 0.05:
        problem(f"/health took {p99 * 1e3:.1f} ms (99 of 100)")
    if len(refusals) < 2 or not seen["refused"]:
        problem("nobody was refused")
    elif statistics.quantiles(refusals, n=100)[98] > 0.1:
        problem(f"refusals took {statistics.quantiles(refusals, n=100)[98]:.3f} s (99 of 100)")
    print(json.dumps({"seconds": options.seconds, "streams": options.streams, "waiting": options.waiting, **seen,
                      "all_tokens": number("answer_tokens_total"), "health_p99_ms": round(p99 * 1e3, 2), "health_asked": len(health),
                      "refusal_ms": {"median": round(1e3 * statistics.median(refusals or [0]), 2), "most": round(1e3 * max(refusals or [0]), 2)},
                      "before": before, "warm": warm, "after": after, "cpus": os.cpu_count(), "problems": len(problems)}))
finally:
    server.send_signal(signal.SIGTERM)
    server.wait(timeout=30)
sys.exit(1 if problems else 0)
