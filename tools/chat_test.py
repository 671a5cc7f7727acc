#!/usr/bin/env python3
"""riptide chat on a terminal: pastes, blocks, history, Ctrl-C, saved conversations, tools. usage: chat_test.py RIPTIDE

The terminal is a pty here, so that keys are what they are for a person.
"""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

import cli_test
from cli_test import work
from test_support import ROOT, expect, riptide, skipped, told

PROMPT = "> "
QUESTION = "What is 12 plus 30?"


class Terminal:
    """riptide chat on a terminal of its own. `seen`: all that it has shown."""

    def __init__(self, *arguments, term="xterm", command="chat"):
        self.seen, self.read_to = "", 0
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.environ.update(TERM=term, XDG_STATE_HOME=str(work / "state"), LC_ALL="C.UTF-8")
            os.execv(str(riptide), [str(riptide), command, *map(str, arguments)])
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))

    def more(self, seconds):
        if not select.select([self.terminal], [], [], seconds)[0]:
            return False
        try:
            piece = os.read(self.terminal, 65536)
        except OSError:
            piece = b""
        self.seen += piece.decode("utf-8", "replace")
        return bool(piece)

    def wait(self, pattern, what, seconds=60):
        """What was shown up to the next match of the pattern."""
        until = time.monotonic() + seconds
        while (found := re.search(pattern, self.seen[self.read_to:])) is None and time.monotonic() < until:
            if not self.more(0.2) and self.ended():
                break
        found = found or re.search(pattern, self.seen[self.read_to:])
        expect(found is not None, f"{what}: expected {pattern!r}, seen {self.seen[self.read_to:][-600:]!r}")
        begin = self.read_to
        self.read_to = begin + found.end() if found else len(self.seen)
        return self.seen[begin:self.read_to]

    def prompt(self, what):
        return self.wait(r"\x1b\[\?2004h[^>]*> |\n> ", what)

    def type(self, keys):
        os.write(self.terminal, keys.encode())

    def line(self, text, what=""):
        """Types a line, and gives what is shown until the next prompt."""
        self.type(text + "\r")
        return self.prompt(what or f"after {text!r}")

    def ended(self):
        try:
            return os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def status(self, seconds=20):
        """The exit status; None: it goes on."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            while self.more(0.02):
                pass
            process, status = os.waitpid(self.process, os.WNOHANG)
            if process:
                os.close(self.terminal)
                return os.waitstatus_to_exitcode(status)
        return None

    def __enter__(self):
        self.prompt("the first prompt")
        return self

    def __exit__(self, *_):
        if not self.ended():
            self.type("/quit\r")
            if self.status() is None:
                os.kill(self.process, signal.SIGKILL)
                expect(False, f"/quit leaves: {self.seen[-300:]!r}")

    def saved(self):
        """The messages so far, through /save."""
        file = work / "now.json"
        file.unlink(missing_ok=True)
        self.line(f"/save {file}")
        return json.loads(file.read_text())["messages"] if file.exists() else []


def contents(messages, role):
    return [message["content"] for message in messages if message["role"] == role]


def has_editor():
    with Terminal() as chat:
        found = "\x1b[?2004h" in chat.seen
    if not found:
        skipped.append("line editing: built without libedit")
    return found


def several_lines():
    with Terminal("--temperature", 0, "-n", 40) as chat:
        chat.type("\x1b[200~first line\rsecond: ä\t€\r\rlast\r\x1b[201~")
        chat.wait("last", "a paste is shown")
        expect("tok/s" not in chat.seen, "and sends nothing")
        chat.type(" typed\r")
        chat.prompt("a paste is one message")
        expect(contents(chat.saved(), "user") == ["first line\nsecond: ä\t€\n\nlast typed"], f"all of it: {chat.saved()}")
        chat.line("/new")
        long = "\n".join(f"line {i} of a text that is pasted" for i in range(30))
        chat.type(f"\x1b[200~{long}\x1b[201~\r")
        chat.prompt("a long paste is one message")
        expect(contents(chat.saved(), "user") == [long], "and whole")


def blocks(term):
    with Terminal("--temperature", 0, "-n", 8, term=term) as chat:
        chat.type('"""one\rtwo\r"""\r')
        chat.prompt("a block")
        chat.line('"""three"""')
        expect(contents(chat.saved(), "user") == ["one\ntwo", "three"], f'blocks between """ ({term}): {chat.saved()}')


def history():
    with Terminal("--temperature", 0, "-n", 4) as chat:
        chat.line("first question")
        chat.line("second question")
        chat.line("\x1b[A\x1b[A")
        chat.line("what is\x01so \x05 this")  # to the beginning, to the end
        asked = contents(chat.saved(), "user")
        expect(asked == ["first question", "second question", "first question", "so what is this"], f"arrows and keys: {asked}")
    file = work / "state/riptide/chat_history"
    expect(file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o077 == 0, "the history is its owner's alone")
    with Terminal("--temperature", 0, "-n", 4) as chat:
        chat.line("\x1b[A\x1b[A\x1b[A\x1b[A")  # /quit, /save, and what was asked
        asked = contents(chat.saved(), "user")
        expect(asked and asked[0] in ["so what is this", "first question"], f"the next run has it: {asked}")


def stopping():
    with Terminal("--temperature", 0, "-n", 7000, "--ignore-eos") as chat:
        chat.type("Tell me a story.\r")
        chat.wait(r"2004l[^\x1b]*\w+ \w+ \w+|story\.\r\n\w+ \w+ \w+", "an answer begins")
        time.sleep(0.5)
        chat.type("\x03")
        expect("cancelled" in chat.prompt("Ctrl-C stops an answer"), "and says so")
        messages = chat.saved()
        expect([m["role"] for m in messages] == ["user", "assistant"] and len(messages[1]["content"]) > 3,
               f"what was said stays: {messages}")
        chat.type("half a quest\x03")
        chat.wait("again leaves", "Ctrl-C at the prompt says what another would do")
        chat.prompt("and goes on")
        expect(chat.saved() == messages, "what was typed is gone")
        time.sleep(1.2)
        chat.type("\x03")
        chat.prompt("one that comes later is a first one")
        chat.type("\x03\x03")  # together: a busy machine may take a second from one to the next
        expect(chat.status() == 130, f"twice within a second leaves: {chat.seen[-300:]!r}")
    with Terminal() as chat:
        chat.type("\x04")
        expect(chat.status() == 0, "Ctrl-D leaves")
    with Terminal() as chat:
        os.kill(chat.process, signal.SIGTERM)
        expect(chat.status() == 130, "SIGTERM leaves")


def commands():
    with Terminal("--temperature", 0, "-n", 40) as chat:
        shown = chat.line(QUESTION)
        expect("42" in shown and re.search(r"\x1b\[2m\[\d+ \+ \d+ tokens .* tok/s .*\]", shown), f"an answer and its figures: {shown!r}")
        first = chat.saved()
        expect([m["role"] for m in first] == ["user", "assistant"], f"a turn is two messages: {first}")
        chat.line("What is 7 plus 2?")
        expect(len(chat.saved()) == 4, "and the next two more")
        chat.line("/undo")
        expect(chat.saved() == first, "/undo takes the last turn back")
        chat.line("/retry")
        again = chat.saved()
        expect([m["role"] for m in again] == ["user", "assistant"] and again[0] == first[0], f"/retry asks again: {again}")
        chat.line("/undo")
        expect("nothing was asked" in chat.line("/undo") and "nothing was asked" in chat.line("/retry"), "until nothing is left")
        expect("did you mean /save?" in chat.line("/sav x"), "an unknown command is named with the nearest")
        expect("error" not in chat.line("/etc/hosts is a file"), "a path is no command")
        expect("temperature 0.5" in chat.line("/set temperature 0.5"), "/set")
        for line, said in [("/set temperatur 1", "did you mean temperature"), ("/set temperature hot", "no number"),
                           ("/set temperature -1", "temperature"), ("/set think perhaps", "neither on nor off"),
                           ("/undo 2", "takes nothing"), ("/save", "missing"), ("/file /nowhere", "/nowhere")]:
            expect(re.search(f"error: .*{said}", chat.line(line)), f"{line} is refused")
        expect("temperature 0.5" in chat.line("/set"), "and changes nothing")
        expect("Be brief." in chat.line("/system Be brief.") and "no system" in chat.line("/system -"), "/system")
        help_text = chat.line("/help")
        expect(all(f"/{word}" in help_text for word in "set system show save load retry undo file tools quit".split()), "/help")
        (work / "note.txt").write_text("The word is plum.\n")
        chat.line("/new")
        chat.line(f"/file {work}/note.txt")
        chat.line("What is the word?")
        asked = contents(chat.saved(), "user")
        expect(asked == [f"{work}/note.txt:\n```\nThe word is plum.\n```\n\nWhat is the word?"], f"/file: {asked}")
    with Terminal("--quiet", "--temperature", 0, "-n", 40) as chat:
        expect("tok/s" not in chat.line(QUESTION), "--quiet")


def files():
    kept = work / "kept.json"
    with Terminal("--temperature", 0, "-n", 40, "--system", "Be brief.") as chat:
        chat.line(QUESTION)
        chat.line(f"/save {kept}")
        before = chat.saved()
        saved = json.loads(kept.read_text())
        expect(saved["riptide_conversation"] == 1 and saved["system"] == "Be brief." and saved["title"] == QUESTION and
               saved["model"] and saved["messages"] == before, f"a saved conversation: {saved}")
        (work / "broken.json").write_text('{"riptide_conversation": 1, "messages": [')
        (work / "other.json").write_text('{"riptide_conversation": 2, "messages": []}')
        (work / "none.json").write_text('[1, 2]')
        (work / "role.json").write_text('{"riptide_conversation": 1, "messages": [{"role": "cat", "content": "x"}]}')
        with open(work / "large.json", "wb") as large:
            large.truncate(100 << 20)
        for name, said in [("broken", "broken.json"), ("other", "version 2"), ("none", "expected a conversation"),
                           ("role", "unknown role"), ("large", "large.json"), ("nowhere", "nowhere.json")]:
            shown = chat.line(f"/load {work}/{name}.json")
            expect(re.search(f"error: .*{said}", shown) and shown.count("error") == 1, f"{name}.json is refused: {shown!r}")
        expect(chat.saved() == before, "and the conversation that runs is kept")
        shown = chat.line(f"/save {work}/none.json")
        expect("not replaced" in shown and (work / "none.json").read_text() == "[1, 2]", f"a file of another kind is kept: {shown!r}")
    with Terminal("--temperature", 0, "-n", 40) as chat:
        chat.line(f"/load {kept}")
        expect(chat.saved() == before and "Be brief." in chat.line("/system"), "it is loaded as it was saved")
        chat.line("What is 7 plus 2?")
        expect(len(chat.saved()) == 4, "and goes on")
        evil = {"riptide_conversation": 1, "title": "t\x1b[31m", "messages": [{"role": "user", "content": "x\x1b[32my\x07\u202e"}]}
        (work / "evil.json").write_text(json.dumps(evil))
        chat.line(f"/load {work}/evil.json")
        shown = chat.line("/show")
        expect("\\u001b[31m" in shown and "x\\u001b[32my\\u0007\\u202e" in shown and "\x1b[3" not in shown and "\x07" not in shown,
               f"control characters are escaped: {shown!r}")


def tools():
    tools_file = ROOT / "examples/tools.json"
    tea = "Please brew tea: kind darjeeling, cups 3."
    with Terminal("--tools", tools_file, "--temperature", 0, "-n", 100) as chat:
        expect("brew_tea" in chat.line("/tools"), "/tools")
        chat.type(tea + "\r")
        chat.wait(r"result of brew_tea.*: ", "a call asks for its result")
        chat.type("The tea is ready.\r")
        chat.prompt("the answer goes on")
        messages = chat.saved()
        expect([m["role"] for m in messages[:3]] == ["user", "assistant", "tool"] and len(messages) >= 4 and
               messages[2]["content"] == "The tea is ready." and messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"],
               f"a result that was typed: {messages}")
    program = work / "run-tool"
    program.write_text('#!/bin/sh\necho "$1 got $(cat)"\nexit 3\n')
    program.chmod(0o755)
    for answer, expected in [("y", r'brew_tea got \{.*darjeeling.*\}\n\n\[ended with status 3\]'), ("n", "does not allow")]:
        with Terminal("--tools", tools_file, "--tools-exec", program, "--temperature", 0, "-n", 100) as chat:
            chat.type(tea + "\r")
            chat.wait(r"run .*run-tool brew_tea with .*darjeeling.*\? \[y/N\] ", "a program is not run unasked")
            chat.type(answer + "\r")
            chat.prompt("the answer goes on")
            results = contents(chat.saved(), "tool")
            expect(len(results) >= 1 and re.search(expected, results[0]), f"a program's result ({answer}): {results}")
    cli_test.bad(64, "--tools", "chat", "--tools-exec", program)
    cli_test.bad(64, "--tools-exec", "chat", "--tools-exec", program, "--tools", tools_file, "-m", "x")


def pipes():
    asked = f'{QUESTION}\n/undo\n/sav\n"""What is\n7 plus 2?"""\n/show\n'.encode()
    done = cli_test.run("chat", "--temperature", 0, "-n", 40, stdin=asked)
    text = done.stdout.decode()
    expect(done.returncode == 0 and "42" in text and "> " not in text and "\x1b" not in text, f"a pipe gets answers alone: {done}")
    expect("What is\n7 plus 2?" in text and "12 plus 30" not in text and b"did you mean /save" in done.stderr, f"commands in a pipe: {done}")
    done = cli_test.run("chat", stdin=b'"""never ends\n')
    expect(done.returncode == 0 and b"not sent" in done.stderr, f"a block without end: {done}")


def first_prompt():
    times = []
    for _ in range(5):
        begun = time.monotonic()
        with Terminal():
            times.append(time.monotonic() - begun)
    print(f"from start to the first prompt: {sorted(times)[2]:.2f} s (median of 5)")


if __name__ == "__main__":
    blocks("dumb")
    commands()
    files()
    tools()
    pipes()
    stopping()
    first_prompt()
    if has_editor():
        several_lines()
        blocks("xterm")
        history()
    sys.exit(told("the chat"))
