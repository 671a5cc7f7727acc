#!/usr/bin/env python3
"""What the command line does at its edges: outputs that take nothing, empty values, folders that are none.
usage: cli_edges_test.py RIPTIDE
"""
import json
import math
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

import cli_test
from cli_test import bad, good, work
from test_support import ROOT, Server, expect, riptide, told, wait_for


def shell(command):
    """A line of bash in which $R is the program."""
    return subprocess.run(["bash", "-c", command], capture_output=True, timeout=120, stdin=subprocess.DEVNULL,
                          env=os.environ | {"R": str(riptide)})


def without_reader(arguments):
    """The program, writing to a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run([str(riptide), *arguments], stdout=writer, stderr=subprocess.PIPE, timeout=120,
                              stdin=subprocess.DEVNULL)
    finally:
        os.close(writer)


def served(*arguments):
    return Server("--ctx", 512, *arguments)


def disk_cache():
    bad(66, "/dev/null: cannot be used as a cache", "serve", "--port", 0, "--cache-dir", "/dev/null")
    bad(66, "cannot be used as a cache", "serve", "--port", 0, "--cache-dir", "/proc/nothing")
    with served("--cache-dir", work / "cache") as first:
        expect("cache " not in first.log(), f"a folder that can be used is not worth a word: {first.log()}")
        with served("--cache-dir", work / "cache") as second:
            expect(re.search("^cache .*another process", second.log(), re.MULTILINE), f"a folder in use is said: {second.log()}")
        shutil.rmtree(work / "cache")  # what the server holds cannot be saved as it ends
        body = json.dumps({"prompt": "word " * 400, "max_tokens": 1})
        done = shell(f"curl -s -H 'Content-Type: application/json' -d '{body}' http://127.0.0.1:{first.port}/v1/completions")
        expect(b'"text_completion"' in done.stdout, f"the cache stops no answer: {done}")
    said = re.findall("^cache .*cannot be written.*", first.log(), re.MULTILINE)
    expect(len(said) in [1, 2] and "more like it" in said[-1], f"what cannot be saved is said, once and then as a number: {first.log()}")


def stray_words():
    """A command's name where a model belongs: an error at once, in little memory."""
    for command in ["ab", "run", "bench", "niah", "inspect", "serve"]:
        for word in ["run", "ab"]:
            begun = time.monotonic()
            done = shell(f"cd {work} && ulimit -v 2000000 && exec timeout 20 $R {command} {word}"
                         + (" --prompt x" if command == "run" else " --port 1" if command == "serve" else ""))
            expect(done.returncode not in (0, 124) and time.monotonic() - begun < 20, f"riptide {command} {word} is refused at once: {done}")
            expect(word.encode() in done.stderr + done.stdout, f"riptide {command} {word} names the word: {done}")


def outputs():
    model, ids = work / "tiny.gguf", work / "ids.json"
    good("synth", model, "--shape", "laguna-tiny", "--type", "q8_0")
    ids.write_text("[2, 100, 101]")
    (work / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 3)
    (work / "t.jinja").write_text("{{ x }}")
    (work / "v.json").write_text('{"x": 1}')
    writers = ["run -p x -n 2", "run -p x -n 2 --json", "chat -m x -n 2", "chat -m x -n 2 --json", "tokenize --string x",
               "tokenize --string x --json", "inspect", "inspect --json", f"ppl --text {work}/text.txt --window 32",
               f"template {work}/t.jinja --vars {work}/v.json", "completion bash", "--help", "serve --help", "--version",
               f"bench {model} --device cpu --prompt 8 --gen 2 --repeat 1"]
    for command in writers:
        done = shell(f"exec $R {command} > /dev/full")
        last = (done.stderr.decode().splitlines() or [""])[-1]
        expect(done.returncode == 74 and last.startswith("error: standard output cannot be written"),
               f"{command} on a full disk: {done.returncode} {last}")
    for command in writers[:2] + writers[4:6]:
        expect(shell(f"exec $R {command} >&-").returncode == 74, f"{command} with stdout closed")
        for stderr in ["2>&-", "2>/dev/full"]:
            done = shell(f"exec $R {command} {stderr}")
            expect(done.returncode == 0 and done.stdout, f"{command} {stderr}: nobody has to hear what is said: {done}")
    for command in ["run -p x -n 300", "chat -m x -n 300 --ignore-eos", "inspect --tensors", "--help"]:
        done = without_reader(command.split())
        expect(done.returncode in [0, -signal.SIGPIPE] and b"error" not in done.stderr, f"{command}: its reader has gone: {done}")
    # What is meant for a closed stream must not get into a file.
    done = shell(f"exec $R synth {work}/closed.gguf --shape laguna-tiny --type q8_0 0<&- >&- 2>&-")
    expect(done.returncode == 74 and (work / "closed.gguf").read_bytes()[:4] == b"GGUF", f"no stream at all: {done}")


def empty_values():
    for key in [["--api-key="], ["--api-key", ""]]:
        bad(64, "API key is empty", "serve", *key, "--quiet", "--port", 0)
    bad(64, "no prompt", "run", "--prompt=", "-n", 3)
    bad(64, "stop", "run", "--prompt", "x", "--stop=", "-n", 3)
    for command in [["serve", "--port="], ["serve", "--port", ""], ["run", "-p", "x", "--temperature=", "-n", 3]]:
        bad(64, "a value is missing", *command)
    bad(66, "no such file", "run", "--prompt-file", "--stop=", "-n", 1)  # a value may look like an option
    bad(66, "--quiet=: cannot open", "run", "-p", "x", "--", "--quiet=")
    expect(good("run", "--prompt=x", "-n1", "--temperature=0") ==
           good("run", "--prompt", "x", "-n", 1, "--temperature", 0), "values behind = and apart are the same")


def key_files():
    (work / "keys.txt").write_bytes(b"  first\n\tsecond \t\r\n \t # no key\n \t\nlast\t")
    with served("--api-key-file", work / "keys.txt") as server:
        for key, status in [("first", 200), ("second", 200), ("last", 200), ("# no key", 401), ("", 401)]:
            done = shell(f"curl -s -o /dev/null -w '%{{http_code}}' -H 'x-api-key: {key}' http://127.0.0.1:{server.port}/v1/models")
            expect(done.stdout.decode() == str(status), f"the key '{key}' gives {done.stdout}, expected {status}")
    (work / "keys.txt").write_bytes(b" \t\n\t# none\n")
    bad(65, "no API key in it", "serve", "--port", 0, "--api-key-file", work / "keys.txt")


def token_counts():
    for command in [["run", "-p", "x"], ["chat", "-m", "x"], ["ab"]]:
        for count in [0, -1]:
            bad(64, "at least 1", *command, "-n", count)
        expect("left out: " in good(command[0], "--help").split("--tokens-max")[1][:150], f"{command[0]} --help says what -n is")
    expect(len(json.loads(good("run", "-p", "x", "--json", "--ignore-eos"))["tokens"]) == 128, "run makes 128 tokens unless -n says otherwise")
    expect(len(json.loads(good("run", "-p", "x", "--json", "-n", 1))["tokens"]) == 1, "run -n 1 makes one")


def tls():
    made = {}
    for name in ["server", "other"]:
        made[name] = work / f"{name}.pem"
        done = shell(f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=riptide.example "
                     f"-keyout {work}/{name}.key -out {made[name]} 2> /dev/null")
        if done.returncode != 0:
            print("skipped: TLS: no openssl program to make a certificate with")
            return
    agents = work / "agents"
    agents.mkdir()
    (agents / "claude").write_text("#!/bin/sh\nexit 3\n")
    (agents / "claude").chmod(0o755)
    with served("--tls-cert", made["server"], "--tls-key", work / "server.key", "--api-key", "secret") as server:
        at = ["--port", server.port]
        bad(69, "speaks TLS", "ps", *at)
        done = cli_test.run("doctor", *at)
        expect(done.returncode == 69 and b"speaks TLS" in done.stdout, f"doctor and a server with TLS: {done}")
        done = shell(f"PATH={agents}:$PATH exec $R launch claude --port {server.port}")
        expect(done.returncode == 69 and b"speaks TLS" in done.stderr and b"starting" not in done.stderr, f"launch: {done}")
        bad(69, "does not vouch", "ps", *at, "--tls-ca", made["other"])
        bad(64, "not a certificate", "ps", *at, "--tls-ca", work / "server.key")
        bad(77, "--api-key", "ps", *at, "--tls-ca", made["server"])
        text = good("ps", *at, "--tls-ca", made["server"], "--api-key", "secret")
        expect("answers running" in text, f"ps over TLS: {text}")
        expect("already" in good("doctor", *at, "--tls-ca", made["server"]), "doctor over TLS")
    with served() as server:
        bad(69, "does not speak TLS", "ps", "--port", server.port, "--tls-ca", made["server"])


def no_tokenizer():
    folder, ids = ROOT / "tests/fixtures/laguna_xs2", work / "three.json"
    ids.write_text("[1, 2, 3]")
    asked = ["run", folder, "--tokens", ids, "-n", 4, "--temperature", 0]
    printed = good(*asked)
    expect(json.loads(printed) == json.loads(good(*asked, "--json"))["tokens"], f"without a tokenizer ids are printed: {printed}")
    bad(64, "need a tokenizer", *asked, "--stop", "x")
    bad(65, "no tokenizer", "serve", folder, "--port", 0)
    done = cli_test.run("doctor", folder)
    expect(done.returncode == 69 and b"no tokenizer" in done.stdout and b"only text completions" not in done.stdout,
           f"doctor says what is not there: {done}")


def drafter_as_model():
    for drafter in [ROOT / "models/demo/laguna-demo-dflash.gguf", ROOT / "tests/fixtures/dflash_zlab"]:
        needle = f"{drafter}: is a DFlash drafter, which proposes tokens for a model and is none itself"
        for command in [["run", drafter, "-p", "x"], ["chat", drafter, "-m", "x"], ["serve", drafter, "--port", 0],
                        ["run", "-p", "x", "--scorer", drafter]]:
            bad(65, needle, *command)
        done = cli_test.run("doctor", drafter)
        line = next((line for line in done.stdout.decode().splitlines() if "model" in line), "")
        expect(done.returncode == 69 and line.startswith("BAD") and needle in line and "--drafter" in line,
               f"doctor says what a drafter is: {done}")


def fallback_types():
    fixtures = ROOT / "tests/fixtures"
    for source, kind, said in [
        ("laguna_odd", "f16", None),
        ("dflash_zlab", "q8_0", None),
        ("laguna_odd", "q8_0", "43 of 66 tensors in other types than q8_0 asks for: 43 f16 for q8_0 (rows are no whole blocks)"),
        ("dflash_zlab", "q4_k_m", "15 of 25 tensors in other types than q4_k_m asks for: 12 q5_0 for q4_k, 2 q8_0 for q6_k "
         "(rows are no whole blocks); 1 q8_0 for q4_k (a drafter's fc and head keep precision)"),
    ]:
        lines = good("quantize", fixtures / source, work / "other.gguf", "--type", kind).splitlines()
        expect(lines[1:] == ([] if said is None else [said]), f"quantize {source} {kind} says what fell back: {lines}")


def requantised_weights():
    model, file, ids = work / "wide.gguf", work / "wide-q4.gguf", work / "few.json"
    ids.write_text("[2, 100, 101, 102, 103]")
    good("synth", model, "--shape", "laguna-tiny", "--type", "bf16", "--seed", 9)
    good("quantize", model, file, "--type", "q4_k_m")
    ask = ["--tokens", ids, "-n", 8, "--temperature", 0, "--json"]
    said = cli_test.run("run", model, "--weights", "q4_k_m", *ask)
    first, second = json.loads(good("run", file, *ask)), json.loads(said.stdout)
    expect(first["tokens"] == second["tokens"] and first["logits_hash"] == second["logits_hash"], f"--weights is quantize: {first} {second}")
    told = re.search(rb"--weights q4_k_m: [\d.]+ MiB \(bf16 .*\) became [\d.]+ MiB \(q4_k .*q6_k .*f32 .*\) in [\d.]+ s\n"
                     rb"weights' relative error: q4_k (\d\.\d) %, q6_k (\d\.\d) %; riptide ppl", said.stderr)
    expect(told is not None and 3 < float(told[1]) < 12 and float(told[2]) < 3, f"--weights says what it did: {said.stderr}")
    for command in (["run", model, "x"], ["chat", model, "-m", "x"], ["serve", model], ["bench", model], ["ppl", model, "--text", ids],
                    ["fit", model]):
        bad(64, "--weights: unknown quantisation mix q9_z: expected one of f32, f16, bf16, q8_0", *command, "--weights", "q9_z")
    bad(64, "--weights", "bench", "--random-weights", "laguna-tiny:bf16", "--weights", "q4_0")
    kept = cli_test.run("run", file, "--weights", "q8_0", *ask)
    expect(json.loads(kept.stdout)["logits_hash"] == first["logits_hash"] and b"the model stays as it is" in kept.stderr, f"nothing grows: {kept}")
    for name, smaller in [(model, file), ("laguna-xs.2-bf16", "laguna-xs.2:q4_k_m")]:
        for device in ["cpu", "cuda"]:
            there = ["--memory", "24GiB", "--device", device, "--json"]
            fits = [json.loads(good("fit", *what, *there))["models"][0] for what in ([name, "--weights", "q4_k_m"], [smaller])]
            expect({**fits[0], "name": ""} == {**fits[1], "name": ""}, f"fit counts requantised sizes: {fits}")
    (work / "list.json").write_text(json.dumps({"models": {"small": {"model": str(model), "weights": "q4_k_m"}}}))
    with served("--models", work / "list.json") as server:
        body = json.dumps({"prompt": [2, 100, 101, 102, 103], "max_tokens": 8, "temperature": 0, "ignore_eos": True})
        done = shell(f"curl -s -H 'Content-Type: application/json' -d '{body}' http://127.0.0.1:{server.port}/v1/completions")
        expect(json.loads(done.stdout)["choices"][0]["text"] == first["text"], f"a listed model has weights of its own: {done} {first}")


def peak_memory(*arguments):
    """Bytes that a run had in memory at most."""
    child = subprocess.Popen([str(riptide), *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE)
    said = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    expect(status == 0, f"{arguments}: {said}")
    return usage.ru_maxrss * 1024


def requantised_memory():
    """What is read of a folder in BF16 does not stay in memory while its weights become Q8_0."""
    layers, hidden, wide, vocabulary = 12, 1024, 3072, 16384
    folder, file, ids = work / "streamed", work / "streamed.gguf", work / "few.json"
    folder.mkdir()
    config = json.loads((ROOT / "tests/fixtures/qwen3_tied/config.json").read_text())
    config |= {"vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": wide, "num_hidden_layers": layers, "head_dim": 64,
               "num_attention_heads": 16, "num_key_value_heads": 8, "layer_types": ["full_attention"] * layers,
               "max_window_layers": layers, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens": [vocabulary, hidden], "model.norm": [hidden]}
    for layer in range(layers):
        for name, shape in {"input_layernorm": [hidden], "post_attention_layernorm": [hidden], "self_attn.q_norm": [64],
                            "self_attn.k_norm": [64], "self_attn.q_proj": [1024, hidden], "self_attn.k_proj": [512, hidden],
                            "self_attn.v_proj": [512, hidden], "self_attn.o_proj": [hidden, 1024], "mlp.gate_proj": [wide, hidden],
                            "mlp.up_proj": [wide, hidden], "mlp.down_proj": [hidden, wide]}.items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    seeded = random.Random(1)
    block = b"".join(struct.pack("<H", seeded.choice([0x3c00, 0xbc00]) + seeded.randrange(256)) for _ in range(1 << 15))
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for at in range(0, end, len(block)):
            out.write(block[:end - at])
    good("quantize", folder, file, "--type", "q8_0")
    ask = ["--tokens", ids, "-n", 1, "--ctx", 64, "--device", "cpu", "--threads", 2]
    small, streamed = peak_memory("run", file, *ask), peak_memory("run", folder, "--weights", "q8_0", *ask)
    largest = max(2 * math.prod(shape) for shape in shapes.values())
    print(f"peak memory: {small >> 20} MiB for the file in Q8_0, {streamed >> 20} MiB for {end >> 20} MiB of BF16 with --weights q8_0")
    expect(streamed < small + largest + (100 << 20) and end > largest + (200 << 20),
           f"--weights holds {(streamed - small) >> 20} MiB more than the file that it stands for")


def no_template():
    model = work / "tiny.gguf"
    model.write_bytes(model.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_templat_"))
    bad(65, "no chat template", "chat", model, "-m", "x")
    with served(model) as server:
        line = wait_for(lambda: re.search("(?m)^try.*\n", server.log()))[0]
        done = shell(line.removeprefix("try").replace("curl", "curl -s"))
        expect(line.startswith("try") and '"text_completion"' in done.stdout.decode(), f"what a server tells to try works: {line} {done}")


def messages():
    for empty in [["-m", ""], ["--message="]]:
        bad(64, "the message is empty", "chat", *empty)
    half = work / "half.json"
    half.write_text('[{"role": "user", "content": "\\ud800"}]')
    bad(65, "half of a surrogate pair", "chat", "--messages", half)


if __name__ == "__main__":
    disk_cache()
    stray_words()
    outputs()
    empty_values()
    key_files()
    no_tokenizer()
    drafter_as_model()
    fallback_types()
    requantised_weights()
    requantised_memory()
    no_template()
    token_counts()
    tls()
    messages()
    sys.exit(told("the command line's edges"))
