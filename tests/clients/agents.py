#!/usr/bin/env python3
"""Real coding agents from npm against riptide: Claude Code, Codex, OpenCode, pi, each through `riptide launch`.

usage: agents.py RIPTIDE SCRIPT_SERVER [--agents DIR] [--install SECONDS] [--only NAME,...] [--scenarios NAME,...]
       agents.py --fetch --install SECONDS: only brings the packages

DIR (default: ../../build/agents) holds the packages, one folder for each agent; --install fetches what is missing, in
so much time. Whoever is not there is skipped, with the reason; exits with 77 if nobody is. All runs in a network namespace with nothing but
loopback (`unshare -rn`), so an agent that needs anything else fails.

What the agents ask (their own prompts and tools, 2K to 24K tokens) is answered by a model that recites a script behind
the real server (script_server), except in the scenario `demo`, where the demo model answers.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DEMO = ROOT / "models/demo/laguna-demo.gguf"
PACKAGES = {"claude": "@anthropic-ai/claude-code@2.1.197", "codex": "@openai/codex@0.169.0",
            "opencode": "opencode-ai@1.18.33", "pi": "@mariozechner/pi-coding-agent@0.73.1"}


def call(name, **arguments):
    pairs = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in arguments.items())
    return f"<tool_call>{name}\n{pairs}</tool_call>"


class Agent:
    """argv(prompt): behind `riptide launch NAME --`. read(file): how the agent says to read a file. usage(run): what
    each of its requests cost by its own figures, as (tokens of the prompt, of them cached, tokens made)."""

    def events(self, run):
        return [json.loads(line) for line in run.out.splitlines() if line.startswith("{")]


class Claude(Agent):
    route = "/v1/messages"

    def compacted(self, run):
        return any(e.get("compact_result") == "success" for e in self.events(run))

    def argv(self, prompt):
        return ["-p", "--verbose", "--output-format", "stream-json", "--include-partial-messages", "--allowedTools", "Bash Read", "--", prompt]

    def read(self, file):
        return call("Read", file_path=file)

    def usage(self, run):
        used = [e["event"]["usage"] for e in self.events(run) if e["type"] == "stream_event" and e["event"]["type"] == "message_delta"]
        return [(u["input_tokens"] + u["cache_read_input_tokens"], u["cache_read_input_tokens"], u["output_tokens"]) for u in used]


class Codex(Agent):
    route = "/v1/responses"

    def compacted(self, run):
        return any('"type":"compacted"' in file.read_text() for file in run.home.glob("**/rollout-*.jsonl"))

    def argv(self, prompt):
        return ["exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", prompt]

    def read(self, file):
        return call("exec_command", cmd=f"cat {file}", max_output_tokens=20000)

    def usage(self, run):
        used = []
        for rollout in sorted(run.home.glob("**/rollout-*.jsonl")):
            for line in rollout.read_text().splitlines():
                event = json.loads(line).get("payload", {})
                if event.get("type") == "token_count" and event.get("info"):
                    used.append(event["info"]["last_token_usage"])
        return [(u["input_tokens"], u["cached_input_tokens"], u["output_tokens"]) for u in used]


class OpenCode(Agent):
    route = "/v1/chat/completions"

    def compacted(self, run):
        return "The tea is darjeeling, three cups." in run.out  # said only to who shows the summary

    def argv(self, prompt):
        return ["run", "--format", "json", prompt]

    def read(self, file):
        return call("read", filePath=file)

    def usage(self, run):
        used = [e["part"]["tokens"] for e in self.events(run) if e["type"] == "step_finish"]
        return [(u["input"] + u["cache"]["read"], u["cache"]["read"], u["output"] + u["reasoning"]) for u in used]


class Pi(Agent):
    route = "/v1/chat/completions"

    def compacted(self, run):
        return any(e["type"] == "compaction_start" and e["reason"] == "overflow" for e in self.events(run))

    def argv(self, prompt):
        return ["-p", "--mode", "json", prompt]

    def read(self, file):
        return call("read", path=file)

    def usage(self, run):
        said = [e["message"] for e in self.events(run) if e["type"] == "message_end" and e["message"]["role"] == "assistant"]
        said = [m for m in said if m["stopReason"] != "error"]  # a refusal, after which it asks again
        return [(m["usage"]["input"] + m["usage"]["cacheRead"], m["usage"]["cacheRead"], m["usage"]["output"]) for m in said]


AGENTS = {"claude": Claude(), "codex": Codex(), "opencode": OpenCode(), "pi": Pi()}


class Server:
    """script_server, or riptide serve with the demo model. `log`: a JSON object for each answer."""

    def __init__(self, folder, command, port=0):
        self.folder, self.log_path = folder, folder / "server.log"
        self.process = subprocess.Popen([*map(str, command), "--port", str(port)], stdout=subprocess.PIPE,
                                        stderr=open(self.log_path, "a"), text=True)
        self.port = port

    @classmethod
    def script(cls, world, folder, script, port=0, **settings):
        (folder / "script.json").write_text(json.dumps(script))
        more = [word for name, value in settings.items() for word in ("--" + name.replace("_", "-"), value)]
        server = cls(folder, [world.script_server, DEMO, folder / "script.json", *more], port)
        server.port = int(server.process.stdout.readline().split()[1])
        while "load_ms" not in settings and not server.ready():
            time.sleep(0.02)
        return server

    @classmethod
    def demo(cls, world, folder, *more):
        server = cls(folder, [world.riptide, "serve", "--device", "cpu", "--threads", 2, "--log-format", "json", *more])
        until = time.monotonic() + 60
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/v1 ", server.log_path.read_text())):
            assert time.monotonic() < until and server.process.poll() is None, server.log_path.read_text()
            time.sleep(0.05)
        server.port = int(found[1])
        return server

    def ready(self):
        try:
            return bool(self.get("/health"))
        except OSError:
            assert self.process.poll() is None, self.log_path.read_text()
            return False

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as reply:
            return reply.read().decode()

    def metric(self, name):
        found = re.search(rf"^riptide_{re.escape(name)} (\S+)$", self.get("/metrics"), re.M)
        return float(found[1]) if found else 0.0

    def answers(self):
        lines = [json.loads(line) for line in self.log_path.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == "answered"]

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Run:
    """One agent at work in a home and a folder of its own."""

    def __init__(self, world, name, folder):
        self.world, self.name, self.agent, self.folder = world, name, AGENTS[name], folder
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir(parents=True)
        self.work.mkdir()
        (self.home / "tmp").mkdir()
        self.out = self.err = ""
        self.code = None

    def environment(self):
        keep = {name: os.environ[name] for name in ("LANG", "TERM") if name in os.environ}
        path = f"{self.world.bin(self.name)}:{os.environ['PATH']}"
        return keep | {"PATH": path, "HOME": str(self.home), "TMPDIR": str(self.home / "tmp"), "CI": "1",
                       "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1", "DISABLE_AUTOUPDATER": "1"}

    def command(self, port, *words):
        """Some scenarios have settings that make an agent's own prompt short, and some servers no room on purpose."""
        return [str(self.world.riptide), "launch", "--any-context", "--port", str(port), self.name, "--", *words]

    def profile(self, port):
        """What launch gives the agent: (variables, arguments), with files that stay."""
        spy = self.folder / "spy"
        spy.mkdir(exist_ok=True)
        keep = self.folder / "profile"
        text = ("#!/usr/bin/env python3\nimport json, os, shutil, sys\n"
                f"folder = os.environ.get('PI_CODING_AGENT_DIR')\nif folder: shutil.copytree(folder, {str(keep)!r}, dirs_exist_ok=True)\n"
                f"json.dump([dict(os.environ), sys.argv[1:]], open({str(spy / 'note')!r}, 'w'))\n")
        (spy / self.name).write_text(text)
        (spy / self.name).chmod(0o755)
        environment = self.environment()
        subprocess.run(self.command(port), env=environment | {"PATH": f"{spy}:{environment['PATH']}"}, timeout=60,
                       stdin=subprocess.DEVNULL, check=True)
        variables, arguments = json.loads((spy / "note").read_text())
        if "PI_CODING_AGENT_DIR" in variables:
            variables["PI_CODING_AGENT_DIR"] = str(keep)
        return variables | {"PATH": environment["PATH"]}, arguments

    def go(self, command, timeout, environment=None):
        begun = time.monotonic()
        process = subprocess.Popen(command, env=environment or self.environment(), cwd=self.work, text=True, start_new_session=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            self.out, self.err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            self.out, self.err = process.communicate()
        self.code, self.seconds = process.returncode, time.monotonic() - begun
        return self

    def launch(self, port, prompt, timeout=90, more=()):
        first, *words = self.agent.argv(prompt)
        return self.go(self.command(port, first, *more, *words), timeout)


def install(agents, names, seconds):
    """Fetches the packages that are missing in `agents`, a folder for each."""
    if shutil.which("npm") is None:
        return
    jobs = {}
    for name in names:
        if (agents / name / "node_modules/.bin" / name).exists():
            continue
        folder = agents / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}')
        jobs[name] = subprocess.Popen(["npm", "install", "--no-fund", "--no-audit", "--loglevel", "error", "--fetch-retries", "1",
                                       "--fetch-timeout", "30000", PACKAGES[name]], cwd=folder,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + seconds
    for name, job in jobs.items():
        try:
            job.wait(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
        if job.returncode != 0:
            shutil.rmtree(agents / name, ignore_errors=True)


class World:
    def __init__(self, options):
        self.riptide, self.script_server = options.riptide.resolve(), options.script_server.resolve()
        self.agents = options.agents.resolve()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="riptide-agents-"))
        self.failures, self.checks, self.lock = [], 0, threading.Lock()

    def bin(self, name):
        return self.agents / name / "node_modules/.bin"

    def missing(self, name):
        """Why the agent cannot run; empty if it can."""
        program = self.bin(name) / name
        if not program.exists():
            return f"{PACKAGES[name]} is not installed in {self.agents}"
        try:
            done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, env=os.environ | {"HOME": str(self.folder)})
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"it does not start here: {error}"
        return "" if done.returncode == 0 else f"it does not start here: {(done.stderr or done.stdout)[-200:]}"

    def expect(self, condition, what, run=None):
        with self.lock:
            self.checks += 1
            if condition:
                return
            self.failures.append(what)
            print(f"FAILED {what}")
            if run is not None:
                print(f"  exit {run.code}\n  stdout {run.out[-1500:]}\n  stderr {run.err[-1500:]}")


def main():
    from agent_scenarios import SCENARIOS
    parser = argparse.ArgumentParser(description="Real coding agents against riptide")
    parser.add_argument("riptide", type=pathlib.Path, nargs="?", default=ROOT / "build/cpu/riptide")
    parser.add_argument("script_server", type=pathlib.Path, nargs="?", default=ROOT / "build/cpu/tests/script_server")
    parser.add_argument("--fetch", action="store_true", help="only --install")
    parser.add_argument("--agents", type=pathlib.Path, default=ROOT / "build/agents")
    parser.add_argument("--install", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--only", default=",".join(AGENTS))
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--keep", action="store_true", help="leave the folder of the runs")
    options = parser.parse_args()
    names = options.only.split(",")
    if options.install > 0:
        install(options.agents.resolve(), names, options.install)
    if options.fetch:
        return
    if "RIPTIDE_INSIDE" not in os.environ:  # now without any network
        inside = "ip link set lo up 2>/dev/null; exec \"$@\""
        command = [sys.executable, *sys.argv]
        if shutil.which("unshare") and shutil.which("ip") and subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0:
            command = ["unshare", "-rn", "sh", "-c", inside, "sh", *command]
        else:
            print("no network namespaces here: the agents could reach the network")
        os.execvpe(command[0], command, os.environ | {"RIPTIDE_INSIDE": "1"})
    world = World(options)
    there = []
    for name in names:
        if why := world.missing(name):
            print(f"skipped: coding agent {name}: {why}")
        else:
            there.append(name)
    begun = time.monotonic()

    def work(name):
        for scenario in options.scenarios.split(","):
            folder = world.folder / scenario / name
            folder.mkdir(parents=True)
            try:
                SCENARIOS[scenario](world, Run(world, name, folder))
            except Exception as error:  # a scenario that breaks is a failure of its own
                world.expect(False, f"{scenario}, {name}: {type(error).__name__}: {error}")
    threads = [threading.Thread(target=work, args=(name,)) for name in there]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{len(there)} agents, {world.checks} checks, {len(world.failures)} failed, {time.monotonic() - begun:.0f} s")
    if not options.keep:
        shutil.rmtree(world.folder, ignore_errors=True)
    else:
        print(world.folder)
    sys.exit(1 if world.failures else 0 if there else 77)


if __name__ == "__main__":
    main()
