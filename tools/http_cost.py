#!/usr/bin/env python3
"""CPU time of the HTTP side for each streamed event (a token, mostly). usage: http_cost.py RIPTIDE [streams] [tokens]
With script_server (tests/clients) in RIPTIDE's place, a model that recites makes the tokens, as fast as the server takes them.

Starts `riptide serve` with the demo model, lets several streams run at once, and reads the CPU time of the server's
I/O thread (named riptide-io) before and after. Prints JSON.
"""
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from test_support import ROOT, Server

riptide, streams, tokens = sys.argv[1], int((sys.argv[2:3] or ["8"])[0]), int((sys.argv[3:4] or ["1500"])[0])
recites = pathlib.Path(riptide).name == "script_server"
if recites:
    script = pathlib.Path(tempfile.mkdtemp()) / "script.json"
    script.write_text(json.dumps([{"reasoning": "", "answer": "", "numbers": tokens // 2}]))
    server = subprocess.Popen([riptide, ROOT / "models/demo/laguna-demo.gguf", script, "--ctx", str(4 * tokens + 512), "--max-running", str(streams),
                               "--kv-tokens", str(streams * (4 * tokens + 512)), "--log", "0"], stdout=subprocess.PIPE, text=True)
    port = int(server.stdout.readline().split()[1])
    while "\nriptide_ready 1\n" not in urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode():
        time.sleep(0.05)
else:
    served = Server("--ctx", "2048", "--device", "cpu", "--quiet").ready()
    server, port = served.process, served.port


def io_seconds():
    for task in pathlib.Path(f"/proc/{server.pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "riptide-io":
            return int((task / "schedstat").read_text().split()[0]) / 1e9
    sys.exit("no thread called riptide-io")


def stream(seen, path, body):
    text = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Connection: close\r\nContent-Length: " + str(len(text)).encode() + b"\r\n\r\n" + text)
        events = 0
        while piece := sock.recv(1 << 16):
            events += piece.count(b"data: ")
    seen.append(events)


def measure(path, body):
    seen, before = [], io_seconds()
    threads = [threading.Thread(target=stream, args=(seen, path, body)) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 1e6 * (io_seconds() - before) / sum(seen), sum(seen)


try:
    cases = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "Count."}], "max_tokens": tokens}} if recites else {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Count."}], "max_tokens": tokens},
        "/v1/completions": {"prompt": "x", "max_tokens": tokens},
        "/v1/responses": {"input": "Count.", "max_output_tokens": tokens},
    }
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/props") as props:
        never = {str(token): -100 for token in json.load(props)["stop_ids"]}
    rows = []
    begun = time.monotonic()
    for path, body in cases.items():
        body |= {"stream": True, "temperature": 1, "ignore_eos": True, "logit_bias": never, "tool_choice": "none",
                 "chat_template_kwargs": {"enable_thinking": False}}
        values, events = zip(*(measure(path, body) for _ in range(3)))
        rows.append({"path": path, "us_per_event": {"median": round(statistics.median(values), 2),
                                                    "values": [round(value, 2) for value in values]},
                     "events": events[-1], "events_per_s": round(sum(events) / (time.monotonic() - begun))})
        begun = time.monotonic()
    print(json.dumps({"streams": streams, "tokens": tokens, "cpus": os.cpu_count(), "results": rows}))
finally:
    server.terminate()
    server.wait()
