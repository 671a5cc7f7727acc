#!/usr/bin/env python3
"""riptide pull from a hub that breaks off, lies and names files as it likes; and what such names, and those in files and
of clients, may do to a terminal: nothing. usage: hub_test.py RIPTIDE. The hub is a small server here, on loopback.
"""
import contextlib
import hashlib
import http.server
import json
import random
import re
import socket
import struct
import sys
import threading
import urllib.parse

import cli_test
from chat_test import Terminal
from cli_edges_test import served
from cli_test import work
from test_support import ROOT, expect, told, wait_for


class FakeHub(http.server.BaseHTTPRequestHandler):
    """files: by revision and path; lies: digests that it names in place of the right ones; plain: files without LFS."""
    files, lies, plain, log, cut, url = {}, {}, set(), [], 0, ""

    def log_message(self, *_):
        pass

    def entry(self, path, data):
        if path in self.plain:  # git's own name for the content
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            return {"type": "file", "path": path, "size": len(data), "oid": blob}
        digest = self.lies.get(path, hashlib.sha256(data).hexdigest())
        return {"type": "file", "path": path, "size": 134, "oid": "0" * 40, "lfs": {"oid": digest, "size": len(data)}}

    def do_GET(self):
        self.log.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        tree = re.fullmatch(r"/api/models/owner/name/tree/([^/]+)\?recursive=true", self.path)
        if tree and urllib.parse.unquote(tree[1]) in self.files:
            files = self.files[urllib.parse.unquote(tree[1])]
            listing = [{"type": "directory", "path": "folder"}, *(self.entry(*file) for file in files.items())]
            return self.answer(200, json.dumps(listing).encode())
        file = re.fullmatch(r"/owner/name/resolve/([^/]+)/(.*)", self.path)
        data = self.files.get(urllib.parse.unquote(file[1]), {}).get(file[2]) if file else None
        if data is None:
            return self.answer(404, b"{}")
        begin = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Length", str(len(data) - begin))
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        self.wfile.write(data[begin:begin + self.cut if self.cut else len(data)])
        if self.cut:
            self.connection.shutdown(socket.SHUT_RDWR)

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def a_hub(files, **facts):
    """A function that pulls from a hub with these files, and the folder that they come to."""
    FakeHub.files, FakeHub.lies, FakeHub.plain, FakeHub.cut = {"main": files}, {}, set(), 0
    for fact, value in facts.items():
        setattr(FakeHub, fact, value)
    FakeHub.log.clear()
    hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    FakeHub.url = f"http://127.0.0.1:{hub.server_address[1]}"
    models = work / f"models-{hub.server_address[1]}"
    flags = ["--endpoint", FakeHub.url, "--to", models]
    yield lambda what, *more: cli_test.run("pull", what, *flags, *more), models / "owner/name"
    hub.shutdown()


def is_plain(text):
    """No byte of it moves a cursor, changes a colour, or turns the direction of a line."""
    decoded = text.decode("utf-8", "surrogateescape")
    return not re.search("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", decoded)


def breaks_and_lies():
    files = {f"laguna-{kind}.gguf": random.Random(kind).randbytes(300_000) for kind in ["q4_k_m", "q8_0"]}
    (work / "token").write_text("hf_secret\n")
    with a_hub(files, cut=100_000) as (pull, folder):
        target = folder / "laguna-q4_k_m.gguf"
        part = target.with_name(target.name + ".part")
        done = pull("owner/name:Q4_K_M")
        expect(done.returncode == 69, "a transfer that breaks off is an error", done)
        expect(part.stat().st_size == 100_000 and not target.exists(), "what came is kept under another name")
        FakeHub.cut = 0
        FakeHub.log.clear()
        done = pull("owner/name", "--token-file", work / "token")
        expect(done.returncode == 0 and done.stdout.decode().strip() == str(target), "pull goes on", done)
        expect(target.read_bytes() == files[target.name] and not part.exists(), "and the file is whole")
        expect(FakeHub.log[-1][1] == "bytes=100000-", f"from where it stopped: {FakeHub.log}")
        expect(all(entry[2] == "Bearer hf_secret" for entry in FakeHub.log), "with the token")
        FakeHub.log.clear()
        pull("owner/name")
        expect(len(FakeHub.log) == 1, "what is there and right is not fetched again")
        target.write_bytes(bytes(300_000))
        done = pull("owner/name")
        expect(done.returncode == 0 and b"fetched again" in done.stderr, "what is there and wrong is said", done)
        expect(target.read_bytes() == files[target.name], "and fetched again")
        FakeHub.lies = {"laguna-q8_0.gguf": "0" * 64}
        done = pull("owner/name:q8_0")
        expect(done.returncode == 65 and b"SHA-256" in done.stderr, "a wrong checksum", done)
        expect(not list(folder.glob("*q8_0*")), "leaves nothing")
        done = pull("owner/name:Q3_X")
        expect(done.returncode == 66 and b"laguna-q4_k_m.gguf" in done.stderr, "an unknown variant", done)
        expect(pull("owner/other").returncode == 66, "an unknown repository")
        expect(pull("name").returncode == 64, "no repository at all")


def small_files_and_revisions():
    weights, old, new = b"w" * 99, b'{"rope_theta": 10000}', b'{"rope_theta": 50000}'
    files = {"model.safetensors": weights, "config.json": old, "1_Pooling/config.json": b"{}", "onnx/config.json": b"{}"}
    with a_hub(files, plain={"config.json", "1_Pooling/config.json", "onnx/config.json"}) as (pull, folder):
        expect(pull("owner/name:safetensors").returncode == 0, "a folder of safetensors")
        expect((folder / "1_Pooling/config.json").read_bytes() == b"{}", "with the word on how an embedding model pools")
        expect(not (folder / "onnx").exists(), "and nothing else of its folders")
        FakeHub.files["main"]["config.json"] = new
        expect(pull("owner/name:safetensors").returncode == 0, "and once more, with another config of the same length")
        expect((folder / "config.json").read_bytes() == new, "small files are checked by git's own names")
        FakeHub.files["refs/pr/1"] = {"model.safetensors": weights, "config.json": old}
        done = pull("owner/name:safetensors", "--revision", "refs/pr/1")
        other = folder.with_name("name@refs") / "pr/1"
        expect(done.returncode == 0 and done.stdout.decode().strip() == str(other), "a revision has its own folder", done)
        expect((other / "config.json").read_bytes() == old and (folder / "config.json").read_bytes() == new, "and files")
        expect(any(entry[0] == "/owner/name/resolve/refs%2Fpr%2F1/config.json" for entry in FakeHub.log), "from its place")
        for wrong in ["../..", "-x", "a b", "main?x"]:
            expect(pull("owner/name", f"--revision={wrong}").returncode == 65, f"no revision: {wrong}")
        expect(pull("owner/name", "--revision", "v9").returncode == 66, "one that is not there")


def what_was_pulled_is_known():
    """The server takes the hub's SHA-256 for a file that it has not touched, and computes that of a copy once."""
    demo = (ROOT / "models/demo/laguna-demo.gguf").read_bytes()
    memo = work / "caches/riptide/digests"
    prompt = {"prompt": "word " * 300, "max_tokens": 1, "temperature": 0}

    def cached_by(path, *, wait=lambda: True):
        with served(path, "--cache-dir", work / "shared-tier", "--cache-ram", 0) as server:
            wait_for(wait)
            usage = server.ask("/v1/completions", prompt)["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], server.log()

    def known(path):
        return memo.exists() and f" {path}\n" in memo.read_text()

    with a_hub({"demo-Q4_K_M.gguf": demo}) as (pull, folder):
        pulled = folder / "demo-Q4_K_M.gguf"
        for again in [False, True]:
            memo.unlink(missing_ok=True)
            done = pull("owner/name")
            expect(done.returncode == 0 and known(pulled), f"pull remembers what it has checked, again {again}", done)
        expect(hashlib.sha256(demo).hexdigest() in memo.read_text(), "by its SHA-256")
        cached, log = cached_by(pulled)
        expect(cached == 0 and "SHA-256" not in log, f"a first answer, and nothing to compute: {cached} {log}")
        copy = work / "another/name.gguf"
        copy.parent.mkdir()
        copy.write_bytes(demo)
        _, log = cached_by(copy, wait=lambda: known(copy))
        expect(re.search("^cache .*SHA-256", log, re.MULTILINE), f"a copy's is computed and said: {log}")
        cached, log = cached_by(copy)
        expect(cached > 200 and "SHA-256" not in log, f"and its K/V are those of the first: {cached} {log}")
        memo.write_text("not a memo")
        done = pull("owner/name")
        expect(done.returncode == 0 and known(pulled), "a memo of somebody else's is written anew", done)


def which_files():
    shards = [f"big/m-BF16-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    names = ["m-Q8_0.gguf", "mmproj-m-Q8_0.gguf", "m-DFlash-Q8_0.gguf", "m-draft-Q8_0.gguf", "m-Q8_0.imatrix.gguf",
             "m-F16.gguf", "m-Q4_K_S.gguf", "m-Q4_K_M.gguf", *shards]
    with a_hub({name: name.encode() for name in names}) as (pull, folder):
        def fetched(variant):
            FakeHub.log.clear()
            done = pull(f"owner/name:{variant}")
            files = [entry[0].split("/main/")[1] for entry in FakeHub.log[1:]]
            ok = done.returncode == 0 and done.stdout.decode().strip() == str(folder / files[0])
            return files if ok else done.stderr.decode()
        for variant, expected in [("q8_0", ["m-Q8_0.gguf"]), ("F16", ["m-F16.gguf"]), ("mmproj", ["mmproj-m-Q8_0.gguf"]),
                                  ("m-DFlash-Q8_0.gguf", ["m-DFlash-Q8_0.gguf"]), ("bf16", shards)]:
            got = fetched(variant)
            expect(got == expected, f"{variant} is {expected}: {got}")
        for shard in shards:
            (folder / shard).unlink()
        expect(fetched(shards[1]) == shards, "the name of one shard fetches all, and the first is named")
        done = pull("owner/name:Q4_K")
        expect(done.returncode == 64 and b"m-Q4_K_S.gguf, m-Q4_K_M.gguf" in done.stderr, "what is left is told", done)
    with a_hub({name: b"x" for name in shards[1:]}) as (pull, _):
        done = pull("owner/name:BF16")
        expect(done.returncode == 65 and b"2 shards are there, expected 3" in done.stderr, "a shard is missing", done)
    with a_hub({"m-dflash-Q8_0.gguf": b"x", "imatrix.gguf": b"y"}) as (pull, _):
        expect(pull("owner/name:Q8_0").returncode == 0, "where there are only drafters, one may be meant")


def models_by_name():
    """What pull has stored is found by every command; what is not there is fetched after a question, or not at all."""
    demo = (ROOT / "models/demo/laguna-demo.gguf").read_bytes()
    store = work / "caches/riptide/models"
    once = ["-n", 2, "--temperature", 0]
    expected = cli_test.good("run", "-p", "x", *once)
    with a_hub({"demo-Q4_K_M.gguf": demo, "demo-Q8_0.gguf": demo}) as _:
        done = cli_test.run("run", "owner/name", "x")
        expect(done.returncode == 66 and b"riptide pull owner/name:Q4_K_M" in done.stderr, "no terminal, no download", done)
        expect(not FakeHub.log and not store.exists(), "and nothing is asked of the hub")
        for answer, code, fetched in [("n", 66, False), ("y", 0, True)]:
            terminal = Terminal("owner/name", "x", *once, "--hub", FakeHub.url, command="run")
            shown = terminal.wait(r"\[y/N\] ", "a person is asked")
            expect("owner/name:Q4_K_M is not here" in shown and "1 file" in shown and "MiB" in shown, f"with the size: {shown!r}")
            expect(not list(store.glob("**/*.gguf")), "before anything is fetched")
            terminal.type(answer + "\r")
            expect(terminal.status(60) == code, f"{answer}: {terminal.seen[-400:]!r}")
            expect((store / "owner/name/demo-Q4_K_M.gguf").exists() == fetched, f"{answer} means that")
        expect(cli_test.good("run", "owner/name", "x", *once) == expected, "run finds it")
        expect(cli_test.good("run", "owner/name:q4_k_m", "-p", "x", *once) == expected, "with its variant, too")
        cli_test.good("chat", "owner/name", "-m", "x", *once)
        cli_test.good("bench", "owner/name", "--device", "cpu", "--prompt", 8, "--gen", 2, "--repeat", 1)
        expect("tensors" in cli_test.good("show", "owner/name") and "config" in cli_test.good("inspect", "owner/name"), "show, inspect")
        with served("owner/name") as server:
            expect("model   demo-Q4_K_M" in server.log() and "demo model" not in server.log(), f"serve: {server.log()}")
        listed = json.loads(cli_test.good("list", "--json"))
        expect([(m["name"], m["bytes"]) for m in listed] == [("owner/name:Q4_K_M", len(demo))], f"list: {listed}")
        expect("owner/name:Q4_K_M" in cli_test.good("list"), "list, for people")
        cli_test.good("pull", "owner/name:Q8_0", "--endpoint", FakeHub.url)
        expect(cli_test.good("run", "owner/name", "x", *once) == expected, "of several the usual one is meant")
    here = work / "here/owner"
    here.mkdir(parents=True)
    (here / "name").write_bytes(b"")
    done = cli_test.subprocess.run([str(cli_test.riptide), "run", "owner/name", "x"], cwd=here.parent, capture_output=True)
    expect(done.returncode == 65 and b"empty" in done.stderr, "a path that is there wins", done)
    cli_test.bad(64, "--yes", "rm", "owner/name:Q8_0")
    cli_test.bad(66, "riptide list", "rm", "owner/name:Q2_K")
    cli_test.bad(64, "expected a name", "rm", store / "owner/name/demo-Q8_0.gguf")
    cli_test.good("rm", "--yes", "owner/name:Q8_0")
    expect([m["name"] for m in json.loads(cli_test.good("list", "--json"))] == ["owner/name:Q4_K_M"], "rm removes one")
    cli_test.good("rm", "--yes", "owner/name")
    expect(store.exists() and not list(store.iterdir()), "and the last with its folders")
    known = json.loads(cli_test.good("list", "--known", "--json"))
    expect(re.fullmatch(r"\d{4}-\d\d-\d\d", known["checked"]) and known["models"], f"known models: {known}")
    for model in known["models"]:
        needle = f"riptide pull {model['name']}" if model["name"] else "no repository is recorded"
        cli_test.bad(66, needle, "run", model["alias"], "x")
    cli_test.bad(66, "did you mean laguna-xs.2?", "run", "lagunaxs.2", "x")


def names_of_files():
    hostile = ["-rf.gguf", "a/-o.gguf", "../../up.gguf", "a/../up.gguf", "/up.gguf", "a//up.gguf", "./up.gguf", "a b.gguf",
               "a;b.gguf", "$(id).gguf", "a\n.gguf", "a\\b.gguf", "\u00e4.gguf", "a\x1b]0;owned\x07.gguf", "a\u009b2J.gguf",
               "a\u202efugg.gguf", "a\x7f.gguf"]
    for name in hostile:
        with a_hub({name: b"x", "good-Q8_0.gguf": b"y"}) as (pull, folder):
            done = pull(f"owner/name:{name}")
            expect(done.returncode == 65 and not folder.exists(), f"{name!r} is refused", done)
            expect(not list(work.glob("**/up.gguf")), f"{name!r} is not followed")
            expect(is_plain(done.stderr), f"{name!r} is told in plain words", done)
            done = pull("owner/name:none")
            expect(done.returncode == 66 and is_plain(done.stderr), f"{name!r} in a list", done)
            done = pull("owner/name:Q8_0")
            expect(done.returncode == 0, f"{name!r} is no harm to others", done)
    with a_hub({"a-Q8_0.gguf": b"x"}, lies={"a-Q8_0.gguf": "\x1b[31m\u202e"}) as (pull, _):
        done = pull("owner/name:Q8_0")
        expect(done.returncode == 65 and b"\\u001b[31m\\u202e" in done.stderr and is_plain(done.stderr), "a digest", done)


def names_in_files():
    odd = "n\x1b]0;x\x07\u202e\u009b2J\x7f\nline"
    folder = work / "odd"
    folder.mkdir()
    header = json.dumps({odd: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    (folder / "config.json").write_text(json.dumps({"model_type": odd, odd: {odd: odd}}))
    for arguments in [["inspect", folder, "--metadata", "--tensors"], ["inspect", folder, "--json", "--metadata", "--tensors"],
                      ["run", folder, "--prompt", "x"], ["doctor", folder], ["inspect", work / odd.replace("\n", "")],
                      ["run", "--kv", odd], [odd], ["ps", "--host", odd]]:
        done = cli_test.run(*arguments)
        expect(is_plain(done.stdout) and is_plain(done.stderr), f"{arguments[0]!r} shows names in plain letters", done)
    data = json.loads(cli_test.run("inspect", folder, "--json", "--metadata", "--tensors").stdout)
    expect(data["tensors"][0]["name"] == odd and odd in data["metadata"]["config"], f"JSON means what it meant: {data}")


def names_of_clients():
    with served("--log-content") as server:
        session = "tea\u202e\u009b2J".encode() + b"\x9b31m"
        body = json.dumps({"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as stream:
            stream.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"x-session-id: " + session + b"\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body)
            stream.recv(1000)
            done = cli_test.run("ps", "--port", server.port)
            expect("tea\\u202e\\u009b2J\ufffd31m".encode() in done.stdout and is_plain(done.stdout), "ps shows a session", done)
        odd = '{"prompt": "\u202e\u009b2J\x7f", "max_tokens": 1}'.encode()
        with socket.create_connection(("127.0.0.1", server.port)) as stream:
            stream.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                           b"Content-Type: application/json\r\nContent-Length: " + str(len(odd)).encode() + b"\r\n\r\n" + odd)
            while stream.recv(4096):
                pass
    expect("\\u202e\\u009b2J\\u007f" in server.log() and is_plain(server.log().encode()), f"a log line: {server.log()!r}")


if __name__ == "__main__":
    breaks_and_lies()
    small_files_and_revisions()
    what_was_pulled_is_known()
    which_files()
    models_by_name()
    names_of_files()
    names_in_files()
    names_of_clients()
    sys.exit(told("the hub and the terminal"))
