#!/usr/bin/env python3
"""Crowds over HTTP: starts `riptide serve`, then for each number of clients tells how many tokens a second all answers
have together, prompts included. Made-up prompts, greedy, no end marks; each client asks again when it has its answer.
usage: crowd_bench.py RIPTIDE MODEL [--clients 8,32,128] [--prompt 1024] [--answer 256] [--ids 90000] [-- SERVE FLAGS]
--ids: prompts are of token ids below it. SERVE FLAGS, e.g. --device cuda --kv f8_e4m3 --max-running 128"""
import argparse
import http.client
import json
import random
import sys
import threading
import time

from test_support import Server


def ask(port, prompt, answer):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = {"prompt": prompt, "max_tokens": answer, "temperature": 0, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    if reply.status != 200:
        sys.exit(f"status {reply.status}: {text[:300]}")
    return json.loads(text)["usage"]["completion_tokens"]


def crowd(port, prompts, clients, answer):
    """Tokens of all answers, and seconds."""
    tokens, failed, left, lock = [], [], iter(prompts), threading.Lock()

    def client():
        while True:
            with lock:
                prompt = next(left, None)
            if prompt is None:
                return
            try:
                tokens.append(ask(port, prompt, answer))
            except (SystemExit, OSError) as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=client) for _ in range(clients)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        sys.exit(f"{len(failed)} clients failed: {failed[0]}")
    return sum(tokens), time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("riptide")
    parser.add_argument("model")
    parser.add_argument("--clients", default="8,32,128")
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--answer", type=int, default=256)
    parser.add_argument("--ids", type=int, default=90000)
    flags = sys.argv[sys.argv.index("--") + 1:] if "--" in sys.argv else []
    o = parser.parse_args(sys.argv[1:len(sys.argv) - len(flags) - ("--" in sys.argv)])

    def made(seed):
        draw = random.Random(seed)
        return [draw.randrange(100, o.ids) for _ in range(o.prompt)]

    with Server(o.model, *flags).ready(1000) as server:  # weights may be large
        port = server.port
        crowd(port, [made(19), made(20)], 2, 40)  # warm
        for clients in map(int, o.clients.split(",")):
            asked = clients * (4 if clients <= 32 else 2)
            tokens, seconds = crowd(port, [made(1000 * clients + i) for i in range(asked)], clients, o.answer)
            print(f"{clients:4} clients, {asked} answers: {tokens / seconds:.0f} tok/s, {seconds:.2f} s", flush=True)


if __name__ == "__main__":
    main()
