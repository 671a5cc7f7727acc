#!/usr/bin/env python3
"""What a served model answers to schemas, for schemas.mjs to judge in place of schema_walks' random texts.
usage: RIPTIDE_URL=http://127.0.0.1:8080 schema_answers.py ANSWERS < LINES > LINES
in: {"id", "schema"}; out: {"id", "us", "walks": [TEXT...], "failed": [...]} or {"id", "us", "error"}, one JSON a line.
ANSWERS for each schema, at temperatures 0, 1, 2, 3, 0, ...; those that are cut at 400 tokens have no end."""
import concurrent.futures
import http.client
import json
import os
import sys
import time
import urllib.parse

ANSWERS, TOKENS, AT_ONCE = int(sys.argv[1]), 400, 16
ADDRESS = urllib.parse.urlsplit(os.environ["RIPTIDE_URL"]).netloc


def ask(schema, index):
    body = {"messages": [{"role": "user", "content": "Answer."}], "temperature": index % 4, "seed": index, "max_tokens": TOKENS,
            "chat_template_kwargs": {"enable_thinking": False},
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
    connection = http.client.HTTPConnection(ADDRESS, timeout=600)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    out = json.loads(reply.read())
    connection.close()
    return reply.status, out


def answers(line):
    asked = json.loads(line)
    told = {"id": asked["id"], "us": 0, "walks": [], "failed": []}
    begun = time.monotonic()
    for index in range(ANSWERS):
        status, reply = ask(asked["schema"], index)
        if index == 0:
            told["us"] = round(1e6 * (time.monotonic() - begun))
        if status == 400:
            return {"id": asked["id"], "us": told["us"], "error": reply["error"]["message"]}
        if status != 200:
            told["failed"].append(f"status {status}: {reply}")
            continue
        choice = reply["choices"][0]
        if choice["finish_reason"] == "stop":
            told["walks"].append(choice["message"]["content"])
        else:
            told["failed"].append(f"no end: {choice['finish_reason']}")
    return told


with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
    for told in pool.map(answers, sys.stdin):
        print(json.dumps(told), flush=True)
