"""What the agents are led through; see agents.py. Each scenario: (world, run) for one agent."""
import json
import threading
import time
import urllib.request

from agents import Run, Server

ANSWER = "The tea is darjeeling, three cups."
FINISH = {"has": ["<tool_response>"], "reasoning": "The file has been read.", "answer": ANSWER}
OTHERWISE = {"reasoning": "", "answer": "Tea"}  # titles and the like


def ask(run, file, word="STEEP-IT"):
    """The turn that makes the agent read a file. OpenCode shows the same words to its title's prompt."""
    return {"has": [word], "lacks": ["Generate a title"], "reasoning": "I need to look into the file.", "answer": "I look.\n" + run.agent.read(file)}


def write_tea(run):
    file = run.work / "tea.txt"
    file.write_text("darjeeling, 3 cups\n")
    return str(file)


def check_loop(world, run, what):
    """Two requests, the tool in between, and the second found all of the first in the cache: the agent's own figures."""
    world.expect(run.code == 0 and ANSWER in run.out, f"{what}: {run.name} says what the model said", run)
    world.expect("darjeeling, 3 cups" in run.out, f"{what}: {run.name} has run the tool", run)
    used = run.agent.usage(run)
    world.expect(len(used) == 2, f"{what}: {run.name} asked twice: {used}", run)
    if len(used) == 2:
        (prompt, _, made), (_, cached, _) = used
        world.expect(prompt > 1000 and cached >= 0.99 * (prompt + made) - 2,
                     f"{what}: {run.name}'s second turn took {cached} of {prompt} + {made} tokens from the cache", run)
        print(f"  {what:8} {run.name:9} turn 1: {prompt} + {made} tokens; turn 2: {cached} from the cache; {run.seconds:.1f} s")


def loop(world, run):
    """A tool loop of two turns, with the agent's own prompt and all of its tools."""
    server = Server.script(world, run.folder, [FINISH, ask(run, write_tea(run)), OTHERWISE], ctx=49152)
    try:
        check_loop(world, run.launch(server.port, "STEEP-IT please"), "loop")
    finally:
        server.stop()


def loading(world, run):
    """The model is being loaded when the agent asks: 503 and Retry-After until it is there."""
    script = [FINISH, ask(run, write_tea(run)), OTHERWISE]
    server = Server.script(world, run.folder, script, ctx=49152)
    variables, arguments = run.profile(server.port)
    server.stop()
    server = Server.script(world, run.folder, script, port=server.port, ctx=49152, load_ms=5000)
    try:
        program = str(world.bin(run.name) / run.name)
        check_loop(world, run.go([program, *arguments, *run.agent.argv("STEEP-IT please")], 90, variables), "loading")
        world.expect(run.seconds > 4.5, f"loading: {run.name} has waited: {run.seconds:.1f} s", run)
    finally:
        server.stop()


def full(world, run):
    """The queue is full when the agent asks: 429 and Retry-After until there is room."""
    hold = {"has": ["HOLD-IT"], "answer": "word " * 200}
    server = Server.script(world, run.folder, [hold, FINISH, ask(run, write_tea(run)), OTHERWISE], ctx=49152, step_us=15000,
                           max_running=1, max_queue=2)

    def occupy(stop):  # until the agent has been refused, and then no more
        while not stop.is_set() and server.metric("requests_refused_total") < 1:
            body = json.dumps({"messages": [{"role": "user", "content": "HOLD-IT"}]}).encode()
            try:
                urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/chat/completions", body,
                                                              {"Content-Type": "application/json"}), timeout=60).read()
            except OSError:
                pass
    stop = threading.Event()
    holders = [threading.Thread(target=occupy, args=(stop,)) for _ in range(3)]
    for holder in holders:
        holder.start()
    try:
        until = time.monotonic() + 20
        while server.metric("requests_waiting") < 2 and time.monotonic() < until:
            time.sleep(0.02)
        check_loop(world, run.launch(server.port, "STEEP-IT please"), "full")
        world.expect(server.metric("requests_refused_total") >= 1, f"full: {run.name} was refused at first", run)
    finally:
        stop.set()
        for holder in holders:
            holder.join()
        server.stop()


def socket(world, run):
    """Codex over a WebSocket: a response to go on from before there is a question, and then only what is new."""
    if run.name != "codex":
        return
    server = Server.script(world, run.folder, [FINISH, ask(run, write_tea(run)), OTHERWISE], ctx=49152)
    try:
        run.launch(server.port, "STEEP-IT please", more=["-c", "model_providers.riptide.supports_websockets=true"])
        check_loop(world, run, "socket")
        replies = server.metric('http_replies_total{route="/v1/responses",status="200"}')
        world.expect(replies == 3, f"socket: {run.name} has opened a WebSocket, where it first prepares: {replies:.0f} replies", run)
    finally:
        server.stop()


SUMMARY = "SUMMARY-OF-ALL: the tea is darjeeling."
CONTEXT = {"claude": 33000, "codex": 19000, "opencode": 17000, "pi": 9500}


def overflow(world, run):
    """Three files, of which the context holds two. The agent believes in a context ten times as large, so it is the
    400 that makes it compact. Codex stops at such an answer, without asking again; told the truth it compacts in time."""
    context = CONTEXT[run.name]
    files = []
    for number in (1, 2, 3):
        files.append(run.work / f"part{number}.txt")
        files[-1].write_text(f"PART-{number}\n" + "".join(f"line {i}: the kettle was heard again\n" for i in range(250)))
    summaries = [{"has": [words], "reasoning": "", "answer": SUMMARY}
                 for words in ("CONTEXT CHECKPOINT", "detailed summary", "checkpoint summary", "anchored summary")]
    reads = [{"has": [f"PART-{number}"], "reasoning": "", "answer": run.agent.read(files[number])} for number in (2, 1)]
    script = [*summaries, {"has": ["SUMMARY-OF-ALL"], "anywhere": True, "reasoning": "", "answer": ANSWER},
              {"has": ["PART-3"], "reasoning": "", "answer": "This does not fit."}, *reads, ask(run, files[0]), OTHERWISE]
    server = Server.script(world, run.folder, script, ctx=context)
    try:
        variables, arguments = run.profile(server.port)
        larger = lambda text: text.replace(str(context), str(10 * context))
        for file in (run.folder / "profile").glob("models.json"):
            file.write_text(larger(file.read_text()))
        run.go([str(world.bin(run.name) / run.name), *map(larger, arguments), *run.agent.argv("STEEP-IT please")], 120,
               {name: larger(value) for name, value in variables.items()})
        refused = server.metric(f'http_replies_total{{route="{run.agent.route}",status="400"}}')
        world.expect("This does not fit." not in run.out and refused >= 1, f"overflow: {run.name} was told that it is too much", run)
        if run.name == "codex":
            world.expect(run.code != 0 and refused == 1 and "ran out of room" in run.out, f"overflow: codex says so, and does not ask again ({refused})", run)
            run.launch(server.port, "STEEP-IT please")
        summed = [line["completion_tokens"] for line in server.answers()]
        world.expect(run.agent.compacted(run), f"overflow: {run.name} compacts: {summed}", run)
        if run.name != "pi":  # which ends with -p before it goes on
            world.expect(ANSWER in run.out, f"overflow: {run.name} goes on with the summary", run)
        print(f"  overflow {run.name:9} {run.seconds:.1f} s, {refused:.0f} answers of 400")
    finally:
        server.stop()


def remote(world, run):
    """Codex leaves the summary to a provider that is called OpenAI: an item in a request, an item in the response."""
    if run.name != "codex":
        return
    files = []
    for number in (1, 2, 3):
        files.append(run.work / f"part{number}.txt")
        files[-1].write_text(f"PART-{number}\n" + "".join(f"line {i}: the kettle was heard again\n" for i in range(250)))
    reads = [{"has": [f"PART-{number}"], "reasoning": "", "answer": run.agent.read(files[number])} for number in (2, 1)]
    script = [{"has": ["Write a summary of this conversation"], "reasoning": "", "answer": SUMMARY},
              {"has": ["SUMMARY-OF-ALL"], "anywhere": True, "reasoning": "", "answer": ANSWER},
              {"has": ["PART-3"], "reasoning": "", "answer": "This does not fit."}, *reads, ask(run, files[0]), OTHERWISE]
    server = Server.script(world, run.folder, script, ctx=CONTEXT["codex"])
    try:
        run.launch(server.port, "STEEP-IT please", more=["-c", 'model_providers.riptide.name="OpenAI"'])
        world.expect(run.agent.compacted(run) and ANSWER in run.out, "remote: codex goes on with the server's summary", run)
        world.expect("riptide:SUMMARY-OF-ALL" in "".join(file.read_text() for file in run.home.glob("**/rollout-*.jsonl")),
                     "remote: codex keeps it as it was sent", run)
        print(f"  remote   {run.name:9} {run.seconds:.1f} s")
    finally:
        server.stop()


def idle(world, run):
    """Codex gives up a stream that is silent for 4 s; a prompt that is read for a minute is not."""
    if run.name != "codex":
        return
    script = [FINISH, ask(run, write_tea(run)), OTHERWISE]
    server = Server.script(world, run.folder, script, ctx=49152, row_us=5600)
    try:
        run.launch(server.port, "STEEP-IT please", timeout=200, more=["-c", "model_providers.riptide.stream_idle_timeout_ms=4000"])
        check_loop(world, run, "idle")
        answers = server.answers()
        read = answers[0]["prefill_seconds"] if answers else 0
        world.expect(len(answers) == 2 and read >= 60, f"idle: codex asked twice, its prompt was read for {read:.0f} s: {len(answers)} answers", run)
    finally:
        server.stop()


WORDS = "You are a helpful assistant."
PLAIN = {  # few tools and few words: what 16 million parameters can follow
    "claude": ["--tools", "Read", "--system-prompt", WORDS, "--settings", '{"env": {"MAX_THINKING_TOKENS": "0"}}'],
    "codex": ["--disable", "multi_agent", "--disable", "goals", "-c", 'web_search="disabled"', "-c", "include_permissions_instructions=false",
              "-c", "include_environment_context=false", "-c", "include_apps_instructions=false"],
    "opencode": ["--agent", "plain"],
    "pi": []}
DEMO_PROMPTS = {"claude": ["Call Read with the file_path tea.txt.", "Use the Read tool. Set the file_path to tea.txt.", "Call Read for tea.txt.", "Call Read. Set the file path to tea.txt.",
                           "Call Read. Set the file_path to tea.txt.", "Call Read with file_path: tea.txt", "Use Read with the file path set to tea.txt.", "Run Read on tea.txt"],
                "codex": ["Call exec_command with cmd: cat tea.txt", "Run cat tea.txt", "Call exec_command. Set the command to cat tea.txt."],
                "opencode": ["Call bash. Set the command to cat tea.txt.", "Call bash with command: cat tea.txt", "Run cat tea.txt", "Please use bash with command of cat tea.txt"],
                "pi": ["Call bash. Set the command to cat tea.txt.", "Please use bash with command of cat tea.txt", "Use bash: command git status."]}


def demo(world, run):
    """The demo model itself, with riptide serve, decides. Prompts hold folders and dates, so one wording or another must
    do. Claude Code asks for no thoughts: of a tool's result the demo model thinks for ever."""
    server = Server.demo(world, run.folder, "--temperature", 0)
    more, tried = PLAIN[run.name], []
    try:
        for number, words in enumerate(DEMO_PROMPTS[run.name]):
            run = Run(world, run.name, run.folder / str(number))
            write_tea(run)
            if run.name == "codex":
                (run.home / "words.md").write_text(WORDS)
                more = [*PLAIN["codex"], "-c", f'model_instructions_file="{run.home}/words.md"']
            (run.work / "opencode.json").write_text(json.dumps(
                {"agent": {"plain": {"mode": "primary", "prompt": WORDS, "tools": {"*": False, "bash": True}}}}))
            run.launch(server.port, words, more=more)
            used = run.agent.usage(run)
            tried.append(used)
            if done := run.code == 0 and "darjeeling, 3 cups" in run.out and len(used) > 1:
                break
        world.expect(done, f"demo: {run.name} ran the tool that the demo model called: {tried}", run)
        for (prompt, _, made), (_, cached, _) in zip(used[:1], used[1:]):  # later ones may be cut at the end of the context
            world.expect(cached >= 0.99 * (prompt + made) - 2, f"demo: {run.name}: {cached} of {prompt} + {made} tokens from the cache", run)
        print(f"  demo     {run.name:9} {words!r}: {used}")
    finally:
        server.stop()


SCENARIOS = {"demo": demo, "loop": loop, "loading": loading, "full": full, "overflow": overflow, "idle": idle, "socket": socket, "remote": remote}
