#!/usr/bin/env python3
"""Real replies of the demo model against the schemas of the server's own /openapi.json: whole replies, each event of
streams, errors. Here a schema takes no field that it does not list, so that what it forgets is found, too.

usage: api_schema_test.py RIPTIDE        needs jsonschema (tools/setup.sh --tests)
"""
import copy
import functools
import json
import sys
import urllib.error
import urllib.request

try:
    import jsonschema
except ImportError:
    print("skipped: replies against the API's schemas: python3-jsonschema is not installed (tools/setup.sh --tests installs it)")
    sys.exit(77)

import test_support
from test_support import ROOT, attempt, expect, told

USER = [{"role": "user", "content": "What is 12 plus 30?"}]
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
FUNCTION = {"name": "read", "description": "Reads a file", "parameters": PARAMETERS}


def strict(node):
    """Objects have no fields but those that are listed."""
    if isinstance(node, dict):
        if "properties" in node:
            node.setdefault("additionalProperties", False)
        for value in node.values():
            strict(value)
    elif isinstance(node, list):
        for value in node:
            strict(value)
    return node


class Server(test_support.Server):
    def __init__(self, *more):
        super().__init__("--device", "cpu", "--admin", *more)
        self.ready()
        self.api = json.loads(self.ask("GET", "/openapi.json")[1])
        self.schemas = strict(copy.deepcopy(self.api["components"]["schemas"]))

    def ask(self, method, path, body=None, headers=None):
        data = json.dumps(body).encode() if body is not None else None
        headers = ({"Content-Type": "application/json"} if data else {}) | (headers or {})
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return reply.status, reply.read().decode(), reply.headers["Content-Type"]
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.headers["Content-Type"]

    def problems(self, schema, value):
        judge = jsonschema.Draft202012Validator({"$ref": "#/components/schemas/" + schema, "components": {"schemas": self.schemas}})
        return [f"{'/'.join(map(str, error.path))}: {error.message[:300]}" for error in judge.iter_errors(value)]

    def expect(self, schema, value, what):
        found = self.problems(schema, value)
        expect(not found, f"{what} is no {schema}: {found[:1]}\n    {json.dumps(value)[:600]}")


def events(text):
    """(name or "", JSON or "[DONE]") of each event of a stream."""
    for block in text.split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        yield lines.get("event", ""), lines["data"]


def described(server, path, method, status, kind):
    """The name of the schema of a reply; None: it is text."""
    replies = server.api["paths"][path][method]["responses"]
    reply = replies.get(str(status), replies["default"])
    if "$ref" in reply:
        reply = server.api["components"]["responses"][reply["$ref"].split("/")[-1]]
    return reply["content"][kind.split(";")[0]]["schema"]


def check_reply(server, path, method="get", body=None, status=200, real=None, headers=None):
    what = f"{method.upper()} {real or path} {json.dumps(body)[:80] if body else ''}"
    code, text, kind = server.ask(method.upper(), real or path, body, headers)
    if not expect(code == status, f"{what}: status {code}, expected {status}: {text[:300]}"):
        return None
    schema = described(server, path, method, code, kind)
    if "$ref" not in schema:
        return text
    server.expect(schema["$ref"].split("/")[-1], json.loads(text), what)
    return json.loads(text)


def check_stream(server, path, body):
    """All events of a stream, by name."""
    code, text, kind = server.ask("POST", path, body | {"stream": True})
    assert code == 200 and kind.startswith("text/event-stream"), text
    schema = described(server, path, "post", 200, kind)
    name = (schema.get("anyOf") or [schema])[0]["$ref"].split("/")[-1]
    seen = []
    for event, data in events(text):
        seen.append(event if data != "[DONE]" else data)
        if data == "[DONE]":
            continue
        value = json.loads(data)
        server.expect(name, value, f"an event of {path}")
        expect(not event or event == value["type"], f"{path}: {event} is {value.get('type')}")
    return seen


def check_lines(server, path, body):
    """All lines of a stream of Ollama's API; the last is done, and no other."""
    code, text, kind = server.ask("POST", path, body | {"stream": True})
    assert code == 200 and kind == "application/x-ndjson", text
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        server.expect(described(server, path, "post", 200, kind)["anyOf"][0]["$ref"].split("/")[-1], line, f"a line of {path}")
    expect([line["done"] for line in lines] == [False] * (len(lines) - 1) + [True], f"{path}: the last line alone is done")


def answers(server):
    tool = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}
    custom = {"tools": [{"type": "custom", "custom": {"name": "note"}}], "tool_choice": {"type": "custom", "custom": {"name": "note"}}}
    think = {"chat_template_kwargs": {"enable_thinking": True}}
    chat = {"messages": USER, "max_tokens": 60, "temperature": 0}
    reply = check_reply(server, "/v1/chat/completions", "post", chat | tool)
    expect(reply["choices"][0]["message"].get("tool_calls"), "a chat calls a tool")
    for more in ({}, tool, custom, think, {"logprobs": True, "top_logprobs": 2}, {"n": 2, "max_tokens": 4}, {"max_tokens": 1}):
        check_reply(server, "/v1/chat/completions", "post", chat | more)
        seen = check_stream(server, "/v1/chat/completions", chat | more | {"stream_options": {"include_usage": True}})
        expect(seen[-1] == "[DONE]", "a chat's stream ends with [DONE]")
    text = {"prompt": "def add(a, b):", "max_tokens": 8, "temperature": 0}
    for more in ({}, {"logprobs": 2}, {"echo": True, "logprobs": 1}, {"prompt": ["a", "b"], "n": 2}):
        check_reply(server, "/v1/completions", "post", text | more)
        check_stream(server, "/v1/completions", text | more | {"stream_options": {"include_usage": True}})
    flat, note = {"tools": [{"type": "function"} | FUNCTION], "tool_choice": "required"}, {"type": "custom", "name": "note"}
    responses = {"input": "What is 12 plus 30?", "max_output_tokens": 60, "temperature": 0}
    reasons = think | {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]}
    names = set()
    for more in ({}, flat, reasons, {"tools": [note], "tool_choice": note}, {"max_output_tokens": 1},
                 {"tools": [{"type": "namespace", "name": "files", "tools": flat["tools"]}], "tool_choice": "required"}):
        check_reply(server, "/v1/responses", "post", responses | more)
        names.update(check_stream(server, "/v1/responses", responses | more))
    told = {kind for each in server.schemas["ResponseEvent"]["oneOf"] for kind in [each["properties"]["type"].get("const")] +
            each["properties"]["type"].get("enum", []) if kind}
    expect(names == told - {"response.failed"}, f"all events of a response have come: {sorted(told ^ names)}")
    anthropic = {"tools": [{"name": "read", "input_schema": PARAMETERS}], "tool_choice": {"type": "any"}}
    names = set()
    for more in ({}, anthropic, {"thinking": {"type": "enabled", "budget_tokens": 40}}, {"stop_sequences": ["4"]}, {"max_tokens": 1}):
        check_reply(server, "/v1/messages", "post", chat | more)
        names.update(check_stream(server, "/v1/messages", chat | more))
    told = {each["properties"]["type"]["const"] for each in server.schemas["MessageEvent"]["oneOf"]}
    expect(names == told - {"error"}, f"all events of a message have come: {sorted(told ^ names)}")
    check_reply(server, "/v1/messages/count_tokens", "post", chat)
    asked = {"messages": USER, "stream": False, "options": {"num_predict": 60, "temperature": 0}}
    for more in ({}, {"tools": tool["tools"]}, {"think": True}, {"logprobs": True, "top_logprobs": 2}, {"messages": []}):
        check_reply(server, "/api/chat", "post", asked | more)
        check_lines(server, "/api/chat", asked | more)
    for more in ({}, {"raw": True}, {"think": True}, {"logprobs": True}, {"prompt": ""}):
        check_reply(server, "/api/generate", "post", asked | {"prompt": "Hi"} | more)
        check_lines(server, "/api/generate", asked | {"prompt": "Hi"} | more)


def facts(server):
    ids = check_reply(server, "/tokenize", "post", {"content": "Hi there", "with_pieces": True})["tokens"]
    check_reply(server, "/tokenize", "post", {"messages": USER})
    check_reply(server, "/detokenize", "post", {"tokens": ids})
    check_reply(server, "/apply-template", "post", {"messages": USER})
    for path in ("/", "/api/hello", "/openapi.json", "/health", "/readyz", "/livez", "/version", "/server_info", "/v1/loads", "/v1/models", "/props", "/metrics", "/v1/requests"):
        check_reply(server, path)
    check_reply(server, "/v1/models/{id}", real="/v1/models/" + json.loads(server.ask("GET", "/v1/models")[1])["data"][0]["id"])
    for path in ("/api/tags", "/api/ps", "/api/version"):
        check_reply(server, path)
    check_reply(server, "/api/show", "post", {"model": "any"})
    check_reply(server, "/v1/chat/completions/render", "post", {"messages": USER})
    check_reply(server, "/v1/completions/render", "post", {"prompt": ["a", "b"]})
    check_reply(server, "/flush_cache", "post")
    for path, method in (("/sleep", "post"), ("/is_sleeping", "get"), ("/wake_up", "post")):
        check_reply(server, path, method)
    check_reply(server, "/pause", "post")
    check_reply(server, "/resume", "post")


def requests_in_progress(server):
    """One that is seen while it is answered, and then ended."""
    body = {"prompt": "x", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as stream:
        stream.readline()
        live = check_reply(server, "/v1/requests")["data"]
        expect(len(live) == 1, "a request in progress is listed")
        check_reply(server, "/v1/requests/{id}", "delete", real="/v1/requests/" + live[0]["id"])
        last = [json.loads(data) for _, data in events(stream.read().decode().lstrip("\n")) if "error" in data]
    expect(len(last) == 1, "a stream that is ended says so")
    server.expect("Error", last[0], "the end of a stream that was cancelled")


def errors(server):
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/tokenize",
                 "/v1/chat/completions/render", "/v1/completions/render", "/abort_request", "/detokenize", "/apply-template", "/update_weights"):
        check_reply(server, path, "post", {}, status=400)
        check_reply(server, path, "post", {"x": 1}, status=415, headers={"Content-Type": "text/plain"})
        check_reply(server, path, "post", {"x": 1}, status=403, headers={"Origin": "https://elsewhere.example"})
    for path in ("/api/chat", "/api/generate", "/api/show"):
        check_reply(server, path, "post", {"model": 1}, status=400)
        check_reply(server, path, "post", {"x": 1}, status=415, headers={"Content-Type": "text/plain"})
        check_reply(server, path, "post", {"x": 1}, status=403, headers={"Origin": "https://elsewhere.example"})
    for path, status in (("/api/embed", 400), ("/api/embeddings", 400), ("/api/pull", 403), ("/api/push", 403), ("/api/create", 403), ("/api/copy", 403)):
        check_reply(server, path, "post", {"model": "x"}, status=status)
    check_reply(server, "/api/delete", "delete", {"model": "x"}, status=403)
    check_reply(server, "/v1/chat/completions", "post", {"messages": [USER[0] | {"content": "word " * 4000}]}, status=400)
    check_reply(server, "/v1/messages", "post", {"max_tokens": 1, "messages": [USER[0] | {"content": "word " * 4000}]}, status=400)
    check_reply(server, "/v1/models/{id}", real="/v1/models/another", status=404)
    check_reply(server, "/v1/requests/{id}", "delete", real="/v1/requests/none", status=404)
    check_reply(server, "/abort_request", "post", {"rid": "none"}, status=404)
    check_reply(server, "/props", headers={"Host": "evil.example"}, status=403)


def vectors_and_scores(server):
    """Of the demo model a refusal; then servers of their own, whose model's weights were drawn."""
    for path in ("/v1/embeddings", "/v1/rerank"):
        check_reply(server, path, "post", {"input": "a", "query": "a", "documents": ["b"]}, status=400)
    folder = ROOT / "tests/fixtures/qwen3_embed"
    with Server(folder) as other:
        for more in ({}, {"encoding_format": "base64"}, {"dimensions": 8}):
            check_reply(other, "/v1/embeddings", "post", {"input": ["a", "b"]} | more)
        check_reply(other, "/api/embed", "post", {"input": ["a", "b"]})
        check_reply(other, "/api/embed", "post", {})
        check_reply(other, "/api/embeddings", "post", {"prompt": "a"})
        check_reply(other, "/v1/models")
        check_reply(other, "/v1/completions", "post", {"prompt": "a"}, status=400)
    with Server(folder, "--task", "rerank") as other:
        check_reply(other, "/v1/rerank", "post", {"query": "a", "documents": ["b", {"text": "c"}], "return_documents": True})


def the_judge_can_fail(server):
    good = json.loads(server.ask("GET", "/health")[1])
    expect(not server.problems("Health", good), "what is right passes")
    for bad in ({}, {"status": 1}, good | {"unheard_of": 1}):
        expect(server.problems("Health", bad), f"{bad} does not pass")


def main():
    jsonschema.Draft202012Validator.check_schema({"type": "object"})
    with Server("--ctx", "2048") as server:
        for schema in server.schemas.values():
            jsonschema.Draft202012Validator.check_schema(schema)
        for part in (the_judge_can_fail, answers, facts, requests_in_progress, errors, vectors_and_scores):
            attempt(functools.partial(part, server))
    return told("replies against the API's schemas")


if __name__ == "__main__":
    sys.exit(main())
