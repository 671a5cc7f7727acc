#!/usr/bin/env python3
"""The commands round a server: launch, ps, doctor, completion, systemd's protocol. usage: serve_test.py RIPTIDE.
Agents are fakes on PATH; nothing leaves loopback.
"""
import http.server
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

from test_support import ROOT, Server, answers, ask, attempt, ends, expect, free_port, riptide, scratch, skipped, told, wait_for

work = scratch("serve")


def run(*arguments, env=None, timeout=120):
    return subprocess.run([str(riptide), *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, env=os.environ | (env or {}))


def listens(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def served(*flags, env=None, **more):
    return Server("--ctx", "2048", "--quiet", *flags, env=os.environ | (env or {}), **more)


# What an agent does here: notes what it was given, asks the server as it would, exits with 3.
FAKE = r"""#!/usr/bin/env python3
import json, os, pathlib, sys, urllib.request
env = dict(os.environ)
name = pathlib.Path(sys.argv[0]).name
note = {"arguments": sys.argv[1:], "environment": env}
def post(url, key, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json", "Authorization": "Bearer " + key})
    return json.loads(urllib.request.urlopen(request, timeout=60).read())
messages = [{"role": "user", "content": "What is 12 plus 30?"}]
if name == "claude":
    note["reply"] = post(env["ANTHROPIC_BASE_URL"] + "/v1/messages", env["ANTHROPIC_AUTH_TOKEN"], {"model": env["ANTHROPIC_MODEL"], "max_tokens": 40, "messages": messages, "temperature": 0})
if name == "codex":
    settings = dict(a.split("=", 1) for f, a in zip(sys.argv[1:], sys.argv[2:]) if f == "-c")
    provider = "model_providers.riptide."
    assert json.loads(settings["model_provider"]) == "riptide"
    note["reply"] = post(json.loads(settings[provider + "base_url"]) + "/responses", env[json.loads(settings[provider + "env_key"])], {"model": json.loads(settings["model"]), "input": "What is 12 plus 30?", "temperature": 0, "max_output_tokens": 40})
if name == "opencode":
    config = json.loads(env["OPENCODE_CONFIG_CONTENT"])
    provider, model = config["model"].split("/", 1)
    options = config["provider"][provider]["options"]
    note["reply"] = post(options["baseURL"] + "/chat/completions", options["apiKey"], {"model": model, "messages": messages, "temperature": 0})
if name == "pi":
    provider = json.load(open(env["PI_CODING_AGENT_DIR"] + "/models.json"))["providers"]["riptide"]
    assert sys.argv[1:3] == ["--provider", "riptide"]
    note["reply"] = post(provider["baseUrl"] + "/chat/completions", provider["apiKey"], {"model": provider["models"][0]["id"], "messages": messages, "temperature": 0})
json.dump(note, open(env["NOTE"], "w"))
sys.exit(3)
"""


def printed_settings(port, env):
    """launch --print: the server's address, model and context in each agent's own form, nothing started or written."""
    model, url = ask(port, "/props")["model"], f"http://127.0.0.1:{port}/v1"
    shown = lambda name: run("launch", "--print", name, "--port", port, "--api-key", "it's", env=env)
    for name, found in [
            ("openclaw", lambda j: (lambda p: [p["baseUrl"], p["apiKey"], p["models"][0]["id"], p["models"][0]["contextWindow"]])
             (j["models"]["providers"]["riptide"]) if j["agents"]["defaults"]["model"]["primary"] == f"riptide/{model}" else j),
            ("qwen-code", lambda j: (lambda m: [m["baseUrl"], j["env"][m["envKey"]], m["id"], m["generationConfig"]["contextWindowSize"]])
             (j["modelProviders"]["openai"][0]) if j["model"]["name"] == model else j),
            ("zed", lambda j: (lambda p: [p["api_url"], "it's", p["available_models"][0]["name"], p["available_models"][0]["max_tokens"]])
             (j["language_models"]["openai_compatible"]["riptide"]))]:
        done = shown(name)
        expect(done.returncode == 0 and found(json.loads(done.stdout)) == [url, "it's", model, 2048], f"launch --print {name}: {done}")
    for name, keys in [("hermes", ("default", "base_url", "api_key", "context_length")), ("continue", ("model", "apiBase", "apiKey", "contextLength"))]:
        done = shown(name)
        # Lines of YAML whose values are JSON.
        lines = dict(re.findall(r"^ +(\w+): (\".*\"|\d+)$", done.stdout, re.MULTILINE))
        expect([json.loads(lines.get(key, "null")) for key in keys] == [model, url, "it's", 2048], f"launch --print {name}: {done}")
    expect("64,000" in shown("hermes").stderr, "an agent that wants a longer context is told of")
    words = shlex.split(shown("cline").stdout)
    expect(words == ["cline", "auth", "-p", "openai", "-b", url, "-k", "it's", "-m", model], f"launch --print cline: {words}")
    expect(not list((work / "home").iterdir()), "launch --print writes nothing")
    for name in ["claude", "codex", "opencode"]:
        done = subprocess.run(["sh", "-c", run("launch", "--print", name, "--port", port, env=env).stdout], env=os.environ | env, capture_output=True, text=True)
        expect(done.returncode == 3 and "42" in (work / "note.json").read_text(), f"what --print says of {name} can be run: {done}")
        (work / "note.json").unlink()
    expect("models.json:" in run("launch", "--print", "pi", "--port", port, env=env).stdout, "and of pi it tells the file too")
    done = run("launch", "hermes", "--port", port, env=env)
    expect(done.returncode == 64 and "--print hermes" in done.stderr, f"an agent that is not started: {done}")
    done = run("launch", "--print", "zed", "--port", free_port(), env=env)
    expect(done.returncode == 69 and "riptide serve" in done.stderr, f"--print without a server: {done}")


def launch():
    tools, home = work / "bin", work / "home"
    tools.mkdir()
    home.mkdir()
    for name in ["claude", "codex", "opencode", "pi"]:
        (tools / name).write_text(FAKE)
        (tools / name).chmod(0o755)
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "NOTE": str(work / "note.json"), "HOME": str(home),
           "TMPDIR": str(work / "tmp"), "ANTHROPIC_API_KEY": "the user's own"}
    (work / "tmp").mkdir()
    port = free_port()
    server = None
    for name in ["claude", "codex", "opencode", "pi"]:
        done = run("launch", name, "--port", port, env=env)
        expect(done.returncode == 64 and re.search("has a context of (8,192|2,048)", done.stderr) and "--any-context" in done.stderr and
               not (work / "note.json").exists(), f"launch {name} does not start into a wall: {done.stderr}")
        done = run("launch", name, "--port", port, "--any-context", "--", "--flag", "a word", env=env)
        expect(done.returncode == 3, f"launch {name} ends as the agent does: {done.returncode} {done.stderr[-500:]}")
        note = json.loads((work / "note.json").read_text())
        expect(note["arguments"][-2:] == ["--flag", "a word"], f"launch {name} hands arguments on: {note['arguments']}")
        expect("42" in json.dumps(note["reply"]), f"the model answers {name}: {note['reply']}")
        expect(not list((work / "tmp").iterdir()) and not list(home.iterdir()), f"launch {name} leaves nothing behind")
        if name == "claude":
            expect(note["environment"]["ANTHROPIC_API_KEY"] == "", "claude does not use the user's own key")
            expect(not listens(port), "the server that launch has started ends with the agent")
            server = served(port=port).ready()
        (work / "note.json").unlink()
    expect(server.process.poll() is None and listens(port), "a server that ran before goes on")
    printed_settings(port, env)
    shutil.rmtree(work / "tmp")
    (work / "tmp").mkdir()
    env["PATH"] = "/nonexistent"
    done = run("launch", "claude", "--port", port, env=env)
    expect(done.returncode == 69 and "not on PATH" in done.stderr, f"launch without the agent: {done.stderr}")
    expect(run("launch", "emacs").returncode == 64, "launch of what is no agent")
    server.end()
    env["PATH"] = f"{tools}:{os.environ['PATH']}"
    done = run("launch", "claude", "--port", port, "--model", work / "none.gguf", env=env)
    expect(done.returncode == 69 and "none.gguf" in done.stderr, f"launch says why the server ended: {done.stderr}")


def launch_on_several_models():
    """The default is loaded for the agent, however long that takes; one that cannot be loaded is told."""
    folder, tools = work / "launched", work / "bin"
    folder.mkdir()
    shutil.copy(ROOT / "models/demo/laguna-demo.gguf", folder / "one.gguf")
    (work / "two.gguf").write_bytes(b"no model")
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "NOTE": str(work / "note.json"), "TMPDIR": str(work / "tmp")}
    with served("--models", str(folder)) as server:
        done = run("launch", "pi", "--port", server.port, "--any-context", env=env)
        expect(done.returncode == 3 and "'one' is being loaded" in done.stderr, f"launch waits for the model: {done}")
        expect("42" in (work / "note.json").read_text(), "and the agent has its answer")
        (work / "note.json").unlink()
    models = work / "models.json"
    models.write_text(json.dumps({"models": {"two": {"model": str(work / "two.gguf")}}}))
    with served("--models", str(models)) as server:
        for attempt in ["first", "second"]:
            done = run("launch", "pi", "--port", server.port, "--any-context", env=env)
            expect(done.returncode == 69 and "two.gguf" in done.stderr and not (work / "note.json").exists(),
                   f"launch says why the model cannot be loaded, the {attempt} time: {done}")


def guide():
    """The guide's lines, by copy and paste: its server, with no flag but another port, and its questions."""
    block = re.search(r"```sh\n(build/cpu/riptide serve .*?)```", (ROOT / "docs/guide.md").read_text(), re.DOTALL)[1]
    port = free_port()
    serve, *questions = re.split(r"\n(?=curl)", block.replace("8484", str(port)).strip())
    command = serve.split("#")[0].strip()
    expect(command == "build/cpu/riptide serve" and len(questions) == 2, f"the guide's server and two questions: {command}")
    server = subprocess.Popen([str(riptide), *command.split()[1:], "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    expect(wait_for(lambda: listens(port)), "the guide's server listens")
    get_health = lambda: subprocess.run(["curl", "-sf", f"http://127.0.0.1:{port}/health"], capture_output=True).returncode == 0
    expect(wait_for(get_health), "the guide's server is ready")
    for question, words in zip(questions, ("42", '"reasoning_content"')):
        done = subprocess.run(["bash", "-c", question], capture_output=True, text=True, timeout=60)
        expect(done.returncode == 0 and words in done.stdout and '"error"' not in done.stdout, f"{question}: {done.stdout[-300:]} {done.stderr[-200:]}")
    expect("[DONE]" in done.stdout, "the guide's stream ends")
    expect(ends(server), "and so does its server")


def ps_and_doctor():
    port = free_port()
    done = run("ps", "--port", port)
    expect(done.returncode == 69 and "riptide serve" in done.stderr, f"ps without a server: {done.stderr}")
    done = run("doctor", "--port", port)
    expect(done.returncode == 0 and f"{port}: free" in done.stdout, f"doctor: {done.stdout}{done.stderr}")
    (work / "key").write_text("secret\n")
    server = served("--api-key-file", str(work / "key"), port=port).ready()
    expect(run("ps", "--port", port).returncode == 77, "ps without the key")
    stream = socket.create_connection(("127.0.0.1", port))
    body = json.dumps({"prompt": "x", "max_tokens": 1500, "ignore_eos": True, "stream": True}).encode()
    stream.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nx-session-id: tea\r\n"
                   b"x-api-key: secret\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body)
    stream.recv(1000)
    done = run("ps", "--port", port, "--api-key", "secret")
    expect(done.returncode == 0 and "tea" in done.stdout and "cmpl-" in done.stdout, f"ps shows a request: {done.stdout}{done.stderr}")
    data = json.loads(run("ps", "--port", port, "--api-key", "secret", "--json").stdout)
    expect(data["server"]["model"] == "laguna-demo", f"ps --json: {data}")
    stream.close()
    done = run("doctor", "--port", port)
    expect("already" in done.stdout, f"doctor finds a server: {done.stdout}")
    done = run("doctor", work / "none.gguf", "--port", port)
    expect(done.returncode == 69 and "BAD   model" in done.stdout, f"doctor on a missing model: {done.stdout}")
    server.end()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        done = run("doctor", "--port", port)
        expect(done.returncode == 69 and "another program has it" in done.stdout, f"doctor on a port in use: {done.stdout}")


def systemd():
    path = work / "notify"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(str(path))
    sock.settimeout(30)
    server = served(env={"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000"}).ready()
    messages = [sock.recv(1000).decode() for _ in range(4)]
    expect(messages[0].startswith("READY=1\nSTATUS="), f"READY comes first: {messages}")
    expect(messages.count("WATCHDOG=1") >= 2, f"and then the watchdog's: {messages}")
    server.end()
    rest = []
    sock.setblocking(False)
    try:
        while True:
            rest.append(sock.recv(1000).decode())
    except BlockingIOError:
        pass
    expect(rest and rest[-1] == "STOPPING=1", f"STOPPING comes last: {rest}")


def signals_and_pipes():
    with served() as server:
        for number in [signal.SIGHUP, signal.SIGPIPE]:
            server.process.send_signal(number)
            time.sleep(0.1)
            expect(answers(server.port), f"signal {number} is no reason to end")
    port, asked = server.port, {"prompt": "x", "max_tokens": 2}
    command = [str(riptide), "serve", "--port", str(port), "--ctx", "2048"]
    # A log that nobody reads: the pipe is full after a while, and its reader goes in the end.
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    expect(wait_for(lambda: answers(port)), "a server whose log nobody reads gets ready")
    for _ in range(900):
        ask(port, "/v1/completions", {"prompt": "x", "max_tokens": 1})
    expect("choices" in ask(port, "/v1/completions", asked), "a full pipe does not stop the server")
    server.stderr.close()
    expect("choices" in ask(port, "/v1/completions", asked), "nor does one that is closed")
    expect(ends(server), "and ends in order")
    server = subprocess.Popen(["bash", "-c", f"exec '{riptide}' serve --port {port} --ctx 2048 >&- 2>&-"])
    expect(wait_for(lambda: answers(port)), "a server without stderr gets ready")
    expect("choices" in ask(port, "/v1/completions", asked), "and answers")
    expect(ends(server), "and ends in order")
    if os.geteuid() == 0:
        skipped.append("a port and a key file that are not allowed: this is root")
    else:
        done = run("serve", "--port", 1)
        expect(done.returncode == 77 and "port 1 " in done.stderr, f"a port that is not allowed: {done.stderr}")
        (work / "locked").write_text("key")
        (work / "locked").chmod(0)
        expect(run("serve", "--api-key-file", work / "locked").returncode == 77, "a key file that is not allowed")


def idle_connections(count=10_000):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 200
    if hard < needed:
        skipped.append(f"{count} idle connections: {needed} file descriptors are needed, {hard} allowed (ulimit -Hn)")
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))  # the server's too
    server = served().ready()

    def memory():
        return int(re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{server.process.pid}/status").read_text())[1]) >> 10

    def connections():
        return int(re.search(r"^riptide_connections (\d+)$", server.get("/metrics"), re.MULTILINE)[1])
    before = memory()
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(count)]
    expect(wait_for(lambda: connections() > count), f"{count} idle connections are taken")
    grown = memory() - before
    expect(grown <= 100, f"they take {grown} MiB, expected at most 100")
    begun = time.monotonic()
    for _ in range(100):
        server.get("/health")
    expect(time.monotonic() - begun < 5, "and delay nobody: 50 ms for each question, with 100 of them")
    for sock in idle:
        sock.close()
    expect(wait_for(lambda: connections() < 10), "those that go are forgotten")
    server.end()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def several_models():
    """Two models by name: which one answers, what each costs, and lists that are wrong."""
    folder = work / "models"
    folder.mkdir()
    demo = ROOT / "models/demo/laguna-demo.gguf"
    shutil.copy(demo, folder / "one.gguf")
    shutil.copy(demo, folder / "two.gguf")
    models = folder / "models.json"
    text = {"models": {"first": {"model": "one.gguf", "context": 512},
                       "second": {"model": "two.gguf", "drafter": "ngram"}}, "default": "second"}
    models.write_text(json.dumps(text))
    question = {"prompt": "x", "max_tokens": 4, "temperature": 0}
    with served("--models", str(models), "--admin") as server:
        states = lambda: {m["id"]: m["state"] for m in server.ask("/v1/models")["data"]}
        expect(states() == {"second": "unloaded", "first": "unloaded"}, f"nothing is loaded yet: {states()}")
        expect(server.ask("/v1/completions", question)["model"] == "second", "the default answers")
        expect(states() == {"second": "ready", "first": "unloaded"}, f"and is loaded alone: {states()}")
        replies = [server.ask("/v1/completions", question | {"model": name}) for name in ("first", "second")]
        expect([r["model"] for r in replies] == ["first", "second"], f"each answers by its name: {replies}")
        expect(replies[0]["choices"][0]["text"] == replies[1]["choices"][0]["text"], "the same weights say the same")
        contexts = {m["id"]: m["context_length"] for m in server.ask("/v1/models")["data"]}
        expect(contexts == {"first": 512, "second": 2048}, f"the list's context, and the command line's: {contexts}")
        expect(server.ask("/models/unload", {"model": "first"})["state"] == "unloaded", "one is put away")
        expect(server.ask("/v1/completions", question | {"model": "first"})["model"] == "first", "and comes back")
    with served("--models", str(folder), "--cache-dir", str(work / "models-cache")) as server:
        expect([m["id"] for m in server.ask("/v1/models")["data"]] == ["one", "two"], "a folder's models")
        for name in ("two", "one"):
            expect(server.ask("/v1/completions", question | {"model": name})["model"] == name, f"{name} answers")
        expect(sorted(p.name for p in (work / "models-cache").iterdir()) == ["one", "two"], "each has a cache of its own")
    vectors = {"model": str(ROOT / "tests/fixtures/qwen3_embed"), "context": 512}
    models.write_text(json.dumps({"models": {"embeds": vectors, "ranks": vectors | {"task": "rerank"}}}))
    with served("--models", str(models)) as server:
        made = server.ask("/v1/embeddings", {"model": "embeds", "input": ["a", "b"]})
        expect([len(each["embedding"]) for each in made["data"]] == [64, 64], "one embeds, as its files say")
        ranked = server.ask("/v1/rerank", {"model": "ranks", "query": "a", "documents": ["b", "c"]})
        expect(sorted(each["index"] for each in ranked["results"]) == [0, 1], "one ranks, as the list says")
        tasks = {m["id"]: m["task"] for m in server.ask("/v1/models")["data"]}
        expect(tasks == {"embeds": "embed", "ranks": "rerank"}, f"and both are told: {tasks}")
    for wrong, said in [({"models": {"m": {"model": "none.gguf"}}}, "models.m.model: none.gguf"),
                        ({"models": {"m": {"model": "one.gguf", "speed": 1}}}, "models.m.speed: unknown key"),
                        ({"models": {"m": {"model": "one.gguf", "context": "4K"}}}, "models.m.context is"),
                        ({"models": {"m": {"model": "one.gguf", "kv": "q3"}}}, "models.m: --kv q3"),
                        ({"models": {"m": {"model": "one.gguf", "task": "rank"}}}, "models.m.task is 'rank'"),
                        ({"models": {"m": {"model": "one.gguf"}}, "default": "n"}, 'default: "n"'),
                        ({"models": {}}, "models: expected"), ([], "expected an object")]:
        models.write_text(json.dumps(wrong))
        refused = run("serve", "--models", models, "--port", free_port())
        expect(refused.returncode != 0 and said in refused.stderr, f"{wrong}: {refused.stderr}")
    refused = run("serve", demo, "--models", folder)
    expect(refused.returncode == 64 and "leave out" in refused.stderr, f"MODEL and --models: {refused.stderr}")
    refused = run("serve", "--keep-alive", 3)
    expect(refused.returncode == 64 and "need --models" in refused.stderr, f"--keep-alive alone: {refused.stderr}")


def sleep():
    """The program gives memory back, and answers as before when it is woken."""
    def resident(process):
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{process.pid}/status").read_text())[1]) << 10

    question = {"prompt": "12 plus 30 is", "max_tokens": 12, "temperature": 0}
    with served("--admin") as server:
        before = server.ask("/v1/completions", question)["choices"]
        weights = server.ask("/v1/models")["data"][0]["meta"]["size"]
        awake = resident(server.process)
        expect(server.ask("/sleep", {}) == {"is_sleeping": True}, "/sleep")
        fallen = awake - resident(server.process)
        expect(fallen >= weights, f"asleep it has {fallen} bytes less, of {awake}; weights are {weights}")
        expect(server.ask("/wake_up", {}) == {"is_sleeping": False}, "/wake_up")
        expect(server.ask("/v1/completions", question)["choices"] == before, "the same answer after a sleep")
        server.ask("/sleep", {})


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes spans; at /hangs/v1/traces it takes them and never answers."""
    taken, over = [], threading.Event()

    def do_POST(self):
        self.taken.append((self.path, dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
        if self.path.startswith("/hangs"):
            self.over.wait(60)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def traces():
    """Flag and standard variables; what arrives is JSON of OTLP."""
    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    collector.daemon_threads = True
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{collector.server_port}"
    question = {"prompt": "12 plus 30 is", "max_tokens": 3, "temperature": 0}
    named = {"OTEL_SERVICE_NAME": "left", "OTEL_RESOURCE_ATTRIBUTES": "service.name=right,zone=a%20b", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%3Db"}
    cases = [(["--otlp-endpoint", url], {}, "/v1/traces", {"service.name": "riptide"}),
             (["--otlp-endpoint", url + "/all/"], named, "/all/v1/traces", {"service.name": "left", "zone": "a b"}),
             ([], {"OTEL_EXPORTER_OTLP_ENDPOINT": url + "/env"}, "/env/v1/traces", {}),
             ([], {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": url + "/as/it/is"}, "/as/it/is", {}),
             (["--otlp-endpoint", url], {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, None, {}),
             ([], {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_SDK_DISABLED": "true"}, None, {})]
    for arguments, env, path, resource in cases:
        Collector.taken.clear()
        server = served(*arguments, env=env).ready()
        server.ask("/v1/completions", question)
        server.end()  # which sends what waits
        expect([p for p, *_ in Collector.taken] == ([path] if path else []), f"{arguments} {env}: {[p for p, *_ in Collector.taken]}")
        for _, headers, body in Collector.taken:
            spans = json.loads(body)["resourceSpans"][0]
            found = {a["key"]: a["value"]["stringValue"] for a in spans["resource"]["attributes"]}
            expect(found.items() >= resource.items() and "service.version" in found, f"{env}: {found}")
            names = [s["name"] for s in spans["scopeSpans"][0]["spans"]]
            expect(names == ["text_completion laguna-demo", "riptide.queue", "riptide.prefill", "riptide.decode"], f"spans: {names}")
            expect(headers.get("x-key") == ("a=b" if env == named else None), f"headers: {headers}")
    server = served("--otlp-endpoint", url + "/hangs").ready()
    server.ask("/v1/completions", question)
    begun = time.monotonic()
    server.end()
    expect(time.monotonic() - begun < 5, f"a collector that hangs holds up the end for {time.monotonic() - begun:.1f} s")
    Collector.over.set()
    collector.shutdown()
    for arguments, env, said in [(["--otlp-endpoint", "localhost:4318"], {}, "--otlp-endpoint: no address of HTTP"),
                                 ([], {"OTEL_EXPORTER_OTLP_ENDPOINT": "grpc://h"}, "OTEL_EXPORTER_OTLP_ENDPOINT: no address"),
                                 (["--otlp-endpoint", url], {"OTEL_TRACES_SAMPLER": "some"}, "OTEL_TRACES_SAMPLER=some: expected"),
                                 (["--otlp-endpoint", url], {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"}, "OTEL_TRACES_SAMPLER_ARG=2"),
                                 (["--otlp-endpoint", url], {"OTEL_EXPORTER_OTLP_HEADERS": "a=b%0Ac"}, "OTEL_EXPORTER_OTLP_HEADERS: a name or value"),
                                 (["--otlp-endpoint", url], {"OTEL_RESOURCE_ATTRIBUTES": "a"}, "OTEL_RESOURCE_ATTRIBUTES: part 1"),
                                 (["--otlp-endpoint", url], {"OTEL_BSP_SCHEDULE_DELAY": "soon"}, "OTEL_BSP_SCHEDULE_DELAY=soon")]:
        refused = run("serve", "--port", free_port(), *arguments, env=env)
        expect(refused.returncode == 64 and said in refused.stderr, f"{arguments} {env}: {refused.stderr}")


def completion():
    for shell in ["bash", "zsh", "fish"]:
        text = run("completion", shell).stdout
        expect("launch" in text and "strict-model" in text, f"completion {shell}")
    script = f"source <({riptide} completion bash); COMP_WORDS=(riptide serve --strict); COMP_CWORD=2; _riptide; echo ${{COMPREPLY[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    expect(done.stdout.strip() == "--strict-model", f"bash completes a flag: {done.stdout}{done.stderr}")
    for words, expected in [("run --device ''", "auto cpu cuda"), ("run --device = c", "cpu cuda"), ("chat --drafter n", "ngram"),
                            ("serve --log-format ''", "text json"), ("launch co", "codex continue"), ("ve", "version")]:
        script = (f"cd /proc/self/fdinfo; source <({riptide} completion bash); COMP_WORDS=(riptide {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
                  "_riptide; echo ${COMPREPLY[@]}")
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        expect(done.stdout.strip() == expected, f"bash completes {words!r}: {done.stdout}{done.stderr}")
    fish = run("completion", "fish").stdout
    expect("-l device -x -a 'auto cpu cuda'" in fish and "-l drafter -r -a 'ngram demo'" in fish, "fish knows values")


attempt(guide, launch, launch_on_several_models, ps_and_doctor, systemd, signals_and_pipes, idle_connections, several_models, sleep, traces, completion)
sys.exit(told("commands round a server"))
