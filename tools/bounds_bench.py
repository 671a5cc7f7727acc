#!/usr/bin/env python3
"""What large and hostile requests cost, and what others notice. usage: bounds_bench.py RIPTIDE [--sizes 1,4,16,32] [--only KIND,...]

For every kind of request that makes the server work, at each size in MiB: the reply's status and time, the process's
peak memory above what it had, and beside it the first token of a short chat by another client (median and worst) as
against the same without. Then the same request again, and SIGTERM 100 ms behind it: the time until the process is gone.
Held, or the exit status is 1: memory of 32 times the body and 64 MiB at most; an end 3 s after SIGTERM, the grace time of
these servers, and half a second; another client's first token at most 50 ms later than alone, for which the machine must
be quiet. Prints a Markdown table. A server of its own for each line, on the demo model.
"""
import argparse
import http.client
import json
import pathlib
import re
import socket
import statistics
import sys
import threading
import time

import test_support

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("riptide")
parser.add_argument("--sizes", default="1,4,16,32")
parser.add_argument("--only", default="")
parser.add_argument("--threads", default="1")
options = parser.parse_args()
GRACE = 3


def schema_body(schema, **more):
    return {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}, **more}


def count_of(size, one):
    return max(1, size // len(one))


def deep_example(size):
    schema = {"type": "string", "example": "x" * (size - 2000)}
    for _ in range(56):
        schema = {"anyOf": [schema]}
    return schema_body(schema)


def two_enums(size):
    n = count_of(size // 2, "1000000,")
    return schema_body({"oneOf": [{"enum": list(range(n))}, {"enum": list(range(n - 1, 2 * n - 1))}]})


def optional_members(size):
    return schema_body({"properties": {f"p{i:07}": {} for i in range(count_of(size, '"p0000000":{},'))}})


def required_members(size):
    n = count_of(size, '"p0000000":{},' + 7 * '"p0000000",')
    return schema_body({"properties": {f"p{i:07}": {} for i in range(n)}, "required": [f"p{i % n:07}" for i in range(7 * n)]})


def many_prompts(size):
    schema = {"properties": {f"p{i:07}": {} for i in range(count_of(size, '"p0000000":{},'))}}
    return {"prompt": ["a"] * 64, "max_tokens": 2, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


def chat(content, **more):
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 2, **more}


KINDS = {  # name: (path, body of about so many bytes)
    "oneOf of two lists of numbers": ("/v1/chat/completions", two_enums),
    "members that may be left out": ("/v1/chat/completions", optional_members),
    "members and 7 times as many `required`": ("/v1/chat/completions", required_members),
    "anyOf 56 deep round a long example": ("/v1/chat/completions", deep_example),
    "64 prompts and one schema": ("/v1/completions", many_prompts),
    "a list of words": ("/v1/chat/completions", lambda n: schema_body({"enum": [f"w{i:07}" for i in range(count_of(n, '"w0000000",'))]})),
    "a pattern": ("/v1/chat/completions", lambda n: schema_body({"type": "string", "pattern": "(a|b)*" * (n // 6)})),
    "a grammar": ("/v1/chat/completions", lambda n: chat("a", grammar='root ::= x\nx ::= x x | . # ' + "c" * n)),
    "x ::= x x \\| .": ("/v1/chat/completions", lambda n: chat("a", grammar="root ::= x\nx ::= x x | .", max_tokens=100)),
    "tools": ("/v1/chat/completions", lambda n: chat("a", tool_choice="required", tools=[
        {"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
        for i in range(count_of(n, '{"type": "function", "function": {"name": "f00000", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}},'))])),
    "system messages": ("/v1/chat/completions", lambda n: {"messages": [{"role": "system", "content": "a"}] * count_of(n, '{"role": "system", "content": "a"},') +
                                                           [{"role": "user", "content": "a"}], "max_tokens": 2}),
    "one long word": ("/v1/chat/completions", lambda n: chat("a" * n)),
    "tags of a thinking model": ("/v1/messages", lambda n: {**chat("a"), "messages": [{"role": "user", "content": "a"}, {
        "role": "assistant", "content": "<think>" * (n // 7)}, {"role": "user", "content": "b"}]}),
    "/tokenize, with pieces": ("/tokenize", lambda n: {"content": "ab " * (n // 3), "with_pieces": True}),
    "/detokenize": ("/detokenize", lambda n: {"tokens": [65] * (n // 4)}),
    "stop strings": ("/v1/chat/completions", lambda n: chat("a", stop=["x" * n])),
    "lists inside lists": ("/v1/chat/completions", lambda n: "[" * n),
    "a list of nothing": ("/v1/chat/completions", lambda n: chat("a", metadata=[[]] * (n // 4))),
}


class Server(test_support.Server):
    def __init__(self):
        super().__init__("--ctx", "4096", "--device", "cpu", "--threads", options.threads, "--grace", GRACE, "--cache-ram", "0")
        self.ready()

    def memory(self, key):
        return int(re.search(key + r":\s+(\d+)", pathlib.Path(f"/proc/{self.process.pid}/status").read_text())[1]) * 1024

    def forget_peak(self):
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def post(self, path, text):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        begun = time.monotonic()
        try:
            connection.request("POST", path, text, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            reply.read(1 << 20)
            return reply.status, time.monotonic() - begun
        except (OSError, http.client.HTTPException):
            return 0, time.monotonic() - begun
        finally:
            connection.close()

    def first_token(self):
        """Seconds until the first event with text of a streamed chat."""
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "stream": True})
        begun = time.monotonic()
        with socket.create_connection(("127.0.0.1", self.port), timeout=300) as s:
            s.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                      f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
            seen = b""
            while not re.search(rb'content":"[^"]', seen) and b"[DONE]" not in seen:
                part = s.recv(65536)
                if not part:
                    break
                seen += part
        return time.monotonic() - begun

    def stop(self):
        begun = time.monotonic()
        test_support.ends(self.process)
        return time.monotonic() - begun


def beside(server, work):
    """What `work` returns, and first tokens while it goes on (three at least)."""
    out, times = [], []
    thread = threading.Thread(target=lambda: out.append(work()))
    thread.start()
    while thread.is_alive() or len(times) < 3:
        times.append(server.first_token())
    thread.join()
    return out[0], times


def measure(name, path, make, size):
    made = make(size)
    text = (made if isinstance(made, str) else json.dumps(made, separators=(",", ":"))).encode()
    server = Server()
    for _ in range(3):
        server.first_token()
    server.post("/v1/chat/completions", json.dumps(schema_body({"type": "integer"})))  # the vocabulary's tree is kept
    alone = [server.first_token() for _ in range(15)]
    server.forget_peak()
    before = server.memory("VmRSS")
    (status, seconds), times = beside(server, lambda: server.post(path, text))
    peak = max(0, server.memory("VmHWM") - before)
    again = threading.Thread(target=server.post, args=(path, text))
    again.start()
    time.sleep(0.1)
    gone = server.stop()
    again.join()
    ms = [1000 * x for x in (statistics.median(alone), statistics.median(times), max(times))]
    print(f"| {name} | {len(text) / 2**20:.1f} | {status} | {seconds:.2f} | {peak / 2**20:.0f} | {ms[0]:.0f} | {ms[1]:.0f} | {ms[2]:.0f} | {gone:.2f} |", flush=True)
    wrong = []
    if peak > 32 * len(text) + (64 << 20):
        wrong.append(f"{peak >> 20} MiB for a body of {len(text) >> 20} MiB")
    if gone > GRACE + 0.5:
        wrong.append(f"{gone:.1f} s from SIGTERM to the end")
    if ms[2] > ms[0] + 50:
        wrong.append(f"another client's first token came {ms[2] - ms[0]:.0f} ms later")
    return [f"{name}, {size >> 20} MiB: {what}" for what in wrong]


print("| request | MiB | status | s | peak, MiB more | first token alone, ms | beside it, median | worst | SIGTERM to the end, s |")
print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
problems = []
for kind, (where, make_body) in KINDS.items():
    if options.only and not any(word in kind for word in options.only.split(",")):
        continue
    for mebibytes in map(int, options.sizes.split(",")):
        problems += measure(kind, where, make_body, (mebibytes << 20) - 4096)
print("\n".join(["", *problems]) if problems else "")
sys.exit(1 if problems else 0)
