#!/usr/bin/env python3
"""Drives the riptide binary as a user and as a script would. usage: cli_test.py RIPTIDE

Every bad input must give one line `error: ...` on stderr and a non-zero exit, never a crash or a hang.
"""
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time

from test_support import ROOT, Server, expect, riptide, scratch, told

work = scratch("cli")
os.environ["XDG_CACHE_HOME"] = str(work / "caches")  # nothing of the tests stays in the home of who runs them


def run(*arguments, timeout=120, stdin=None, path=None):
    return subprocess.run([str(riptide), *map(str, arguments)], capture_output=True, timeout=timeout, input=stdin,
                          stdin=subprocess.DEVNULL if stdin is None else None,
                          env=None if path is None else {**os.environ, "PATH": str(path)})


def good(*arguments, **options):
    done = run(*arguments, **options)
    expect(done.returncode == 0, "riptide " + " ".join(map(str, arguments)), done)
    return done.stdout.decode("utf-8", "replace")


def bad(code, needle, *arguments, **options):
    """The command must fail with this exit code and one error line that contains `needle`."""
    done = run(*arguments, **options)
    text = done.stderr.decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    ok = done.returncode == code and len(lines) == 1 and lines[0].startswith("error: ") and needle in lines[0]
    expect(ok, f"riptide {' '.join(map(str, arguments))} -> exit {code}, one line with {needle!r}", done)


def kernels():
    """What the plans say for four models on six chips: tests/ops/plan/kernels-*.txt."""
    plans = ROOT / "tests/ops/plan"
    for shape in ["laguna-xs.2:q4_k_m", "qwen3.5-27b:q4_k_m", "qwen3.5-0.8b:bf16", "qwen3.5-35b-a3b:q4_k_m"]:
        said = "".join(good("kernels", "--random-weights", shape, "--chip", chip) + "\n"
                       for chip in ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120"])
        held = plans / f"kernels-{shape.split(':')[0]}.txt"
        if os.environ.get("RIPTIDE_WRITE_PLANS"):
            held.write_text(said)
        expect(said == held.read_text(), f"riptide kernels: {shape} as in {held.name}")
    one = json.loads(good("kernels", "--rows", "1,4", "--kv", "q8_0/q4_0", "--json"))
    files = {kernel["file"] for line in one["ops"] for run in line["runs"] for kernel in run["kernels"]}
    expect(len(files) > 2 and all((ROOT / file).is_file() for file in files), "kernels: files that are there")
    expect("H200, 4.80 TB/s" in good("kernels", "--rows", "1", "--chip", "h200"), "kernels: an H200's memory")
    bad(64, "sm_90", "kernels", "--chip", "sm_42")
    bad(64, "ascending", "kernels", "--rows", "4,1")


def fits():
    """The arithmetic of GPUs' memory, for shapes without weights."""
    told = good("fit", "laguna-xs.2", "--memory", "24GiB", "--device", "cuda")
    expect("--kv f8_e4m3 --ctx 131072" in told, f"fit: the first type that holds all of it: {told}")
    small, large = ({m["name"]: m for m in json.loads(good("fit", "--memory", size, "--json"))["models"]} for size in ["20GiB", "100 GiB"])
    expect(large["laguna-xs.2-bf16"]["context"]["f32"] == 131072 and small["laguna-xs.2-bf16"]["context"]["tq3_0"] == 0, "fit: memory counts")
    for name, model in small.items():
        held = model["context"]
        order = [held[kv] for kv in ["f32", "f16", "q8_0", "q4_0", "tq3_0"]]
        expect(order == sorted(order) and held["tq3_0"] <= model["trained_context"] == large[name]["trained_context"], f"fit {name}: {model}")
        expect(0 < model["weight_bytes"] < model["needed_bytes"] == large[name]["needed_bytes"], f"fit {name}: {model}")
    expect(small["laguna-xs.2"]["weight_bytes"] == 20270574592, "fit: a file of Laguna XS.2 has 20,270,574,592 bytes of weights")
    demo = json.loads(good("fit", "laguna-tiny:q8_0", "--memory", "1GiB", "--json"))["models"][0]
    expect(demo["context"]["f32"] == demo["trained_context"], f"fit: a small model has all its context: {demo}")
    small, large = (json.loads(good("fit", "laguna-xs.2:iq2_xs", "--memory", "40GiB", "--device", device, "--json"))["models"][0]
                    for device in ["cpu", "cuda"])
    expect(large["weight_bytes"] > 2 * small["weight_bytes"] and large["needed_bytes"] > 24 << 30, f"a GPU takes more for IQ2: {small}, {large}")
    bad(64, "24GiB", "fit", "--memory", "much")
    bad(66, "no shape", "fit", "nothing")
    bad(66, "riptide pull owner/absent", "fit", "owner/absent")


def flags_told(text):
    return set(re.findall(r"(?m)^  (?:-\w,)?(--[\w-]+)", text))


def hidden_flags():
    """--help-all is --help and what that leaves out; of serve this is what the table in docs/server.md has."""
    hidden = {}
    for command in ["run", "chat", "bench", "serve", "imatrix", "ab"]:
        short, whole = good(command, "--help"), good(command, "--help-all")
        hidden[command] = flags_told(whole.partition("Further flags:")[2].partition("\n\n")[0])
        expect(flags_told(short) | hidden[command] == flags_told(whole) and not flags_told(short) & hidden[command], f"{command} --help-all")
        expect(hidden[command] and short.splitlines()[-1] == f"Further flags: riptide {command} --help-all", f"{command} --help names it")
    table = (ROOT / "docs/server.md").read_text().partition("## Further flags")[2].partition("| flag |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(--[\w-]+)", "".join(row.split(" | ")[0] for row in table.splitlines())))
    expect(named == hidden["serve"], f"docs/server.md, Further flags: {sorted(named ^ hidden['serve'])}")
    expect("Further flags" not in good("list", "--help"), "list has no hidden flags")
    bad(64, "--help-all", "list", "--help-all")


def help_and_usage():
    for command in ["run", "chat", "inspect", "tokenize", "template", "quantize", "synth", "bench", "kernels", "ab", "niah", "trace", "ppl",
                    "serve", "launch", "pull", "fit", "list", "show", "rm", "ps", "doctor", "completion"]:
        text = good(command, "--help")
        expect("Examples:" in text and len(text.splitlines()) <= 60, f"{command} --help fits one screen and has examples")
    expect("riptide" in good("--version"), "--version")
    expect(good("version") == good("--version") and good("help") == good("--help") == good(), "words for these flags")
    expect(good("help", "run") == good("run", "--help"), "help COMMAND")
    bad(64, "run", "help", "rum")
    good()
    bad(64, "--prompt", "run", "--promt", "x")
    bad(64, "inspect", "inspekt")
    bad(64, "unknown flag --contxt", "bench", "--random-weights", "laguna-tiny:q8_0", "--contxt", "512")
    bad(64, "--temperature", "run", "--temperature", "hot")
    bad(64, "temperature", "run", "--prompt", "x", "--temperature", "-1")
    bad(64, "top_p", "run", "--prompt", "x", "--top-p", "1.5")
    bad(64, "tokens", "run", "--prompt", "x", "-n", "-5")
    bad(64, "--scorer", "run", "--prompt", "x", "--compress", "always")
    bad(64, "--scorer", "run", "--prompt", "x", "--show-kept")
    bad(64, "--keep", "run", "--prompt", "x", "--keep", "0")
    bad(64, "--keep", "chat", "--message", "x", "--keep", "much")
    bad(64, "on a GPU only", "run", "--device", "cpu", "--prompt", "x", "--prefill", "fp8")
    bad(64, "--compress-above", "run", "--prompt", "x", "--compress-above", "-1")
    bad(66, "no-scorer", "run", "--prompt", "x", "--scorer", "no-scorer.gguf")


def bad_files():
    bad(66, "nowhere.gguf", "inspect", work / "nowhere.gguf")
    for name, content, needle in [
        ("empty.gguf", b"", "empty"),
        ("lfs.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "LFS"),
        ("page.gguf", b"<!DOCTYPE html><html></html>", "HTML"),
        ("short.gguf", b"GGUF\x03\x00\x00\x00", "truncated"),
        ("v1.gguf", b"GGUF\x01\x00\x00\x00" + bytes(16), "version 1"),
        ("many.gguf", b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63), "many.gguf"),
    ]:
        path = work / name
        path.write_bytes(content)
        bad(65, needle, "inspect", path)
        bad(65, name, "run", path, "--prompt", "x")
    folder = work / "folder"
    folder.mkdir()
    bad(65, "folder", "run", folder, "--prompt", "x")


def importance_matrices(model, ids):
    text, matrix = work / "calibration.txt", work / "tiny.imatrix.gguf"
    text.write_text("All work and no play makes the demo a dull model. " * 40)
    said = good("imatrix", model, "-f", text, "-o", matrix, "--window", 64, "--windows", 3)
    expect("over 192 tokens in 3 windows of 64" in said, f"imatrix says what it read: {said}")
    again = work / "again.imatrix.gguf"
    good("imatrix", model, "-f", text, "-o", again, "--window", 64, "--windows", 3, "--threads", 1, "--chunk", 7)
    expect(matrix.read_bytes() == again.read_bytes(), "neither threads nor chunks change an importance matrix")
    info = json.loads(good("inspect", matrix, "--json", "--tensors"))
    shapes = {t["name"]: t["shape"] for t in info["tensors"]}
    weights = {t["name"]: t["shape"] for t in json.loads(good("inspect", model, "--json", "--tensors"))["tensors"]}
    for name, shape in weights.items():
        if len(shape) < 2 or name == "token_embd.weight" or "ffn_gate_inp" in name:  # routers are copies in f32
            continue
        matrices = shape[0] if len(shape) == 3 else 1
        expect(shapes.get(name + ".in_sum2") == [matrices, shape[-1]] and shapes.get(name + ".counts") == [matrices, 1],
               f"{name} has sums of its columns: {shapes.get(name + '.in_sum2')}")
    for kind in ["q2_k", "q3_k_m", "iq3_m", "iq4_xs", "iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s", "mxfp4", "tq2_0", "tq1_0"]:
        plain, weighed = work / "plain.gguf", work / "weighed.gguf"
        done = run("quantize", model, plain, "--type", kind)
        said = b"without an importance matrix" in done.stderr
        expect(done.returncode == 0 and said == (kind in ["iq2_xs", "iq2_xxs", "iq1_m", "iq1_s"]), f"{kind} says what it lacks", done)
        good("quantize", model, weighed, "--type", kind, "--imatrix", matrix)
        expect(plain.read_bytes()[-100000:] != weighed.read_bytes()[-100000:], f"an importance matrix changes {kind}")
        good("run", weighed, "--tokens", ids, "-n", 2, "--temperature", 0, "--json")
    good("quantize", model, plain, "--type", "q2_k", "--tensor", "attn_[qk]\\.=q5_k", "--tensor", "attn_=q8_0")
    types = {t["name"]: t["dtype"] for t in json.loads(good("inspect", plain, "--json", "--tensors"))["tensors"]}
    expect(types["blk.1.attn_q.weight"] == "q5_k" and types["blk.1.attn_v.weight"] == "q8_0"
           and types["blk.1.attn_norm.weight"] == "f32", f"--tensor chooses types: {types}")
    rows = json.loads(good("ppl", model, "--text", text, "--window", 64, "--files", f"{model},{weighed}", "--json"))
    expect([r["kv"] for r in rows] == ["tiny.gguf", "tiny.gguf", "weighed.gguf"] and rows[1]["divergence"] == 0
           and rows[2]["divergence"] > 0, f"ppl --files compares files with the first: {rows}")
    out = work / "x.gguf"
    bad(64, "--tensor nothing=q4_k", "quantize", model, out, "--tensor", "nothing=q4_k")
    bad(64, "nvfp4", "quantize", model, out, "--tensor", "attn=nvfp4")
    bad(65, "imatrix", "quantize", model, out, "--type", "q2_k", "--imatrix", model)
    for old, new, needle in [(b"blk.2.attn_q.weight", b"blk.2.attn_Q.weight", "blk.2.attn_Q.weight is not in the model"),
                             (b"blk.2.attn_q.weight", b"token_embd.weight!!", "token_embd.weight!!")]:
        other = work / "other.imatrix.gguf"
        other.write_bytes(matrix.read_bytes().replace(old, new))
        bad(65, needle, "quantize", model, out, "--type", "q2_k", "--imatrix", other)
    good("quantize", model, plain, "--type", "f32")
    data = bytearray(plain.read_bytes())
    data[len(data) // 2:len(data) // 2 + 64] = b"\xff" * 64
    plain.write_bytes(data)
    bad(65, ".weight, row ", "quantize", plain, out, "--type", "q2_k")
    bad(64, "--device cuda", "imatrix", model, "-f", text, "-o", out, "--device", "cuda")
    bad(65, "expected at least one window", "imatrix", model, "-f", text, "-o", out, "--window", 100000)


def synthetic_models():
    model = work / "tiny.gguf"
    good("synth", model, "--shape", "laguna-tiny", "--type", "q4_k_m", "--seed", 3)
    info = json.loads(good("inspect", model, "--json", "--tensors"))
    expect(info["tensor_count"] == len(info["tensors"]) == 3 + 5 * 9 + 3 + 4 * 8, "tiny model has all its tensors")
    text = good("inspect", model)
    expect("laguna.block_count" in text and "q4_k" in text, "inspect prints config and types")
    ids = work / "ids.json"
    ids.write_text(json.dumps([2, 100, 101, 102, 103, 104, 105, 106, 107, 108]))
    hashes = set()
    for chunk in [1, 7, 64]:
        out = work / f"logits{chunk}.safetensors"
        good("trace", model, "--tokens", ids, "--logits", out, "--chunk", chunk)
        data = out.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        expect(header["logits"]["shape"] == [10, 512] and header["logits"]["dtype"] == "F32", "trace writes f32 logits [n, vocab]")
        hashes.add(data[8 + size:])
    expect(len(hashes) == 1, "chunks of 1, 7 and 64 give the same logits bytes")
    first = json.loads(good("run", model, "--tokens", ids, "-n", 8, "--temperature", 0, "--json"))
    again = json.loads(good("run", model, "--tokens", ids, "-n", 8, "--temperature", 0, "--json", "--chunk", 3))
    expect(first["tokens"] == again["tokens"] and len(first["tokens"]) >= 1, "greedy tokens do not depend on the chunk")
    for kind in ["bf16", "q8_0", "q4_0", "q6_k"]:
        good("quantize", model, work / f"tiny-{kind}.gguf", "--type", kind)
        good("run", work / f"tiny-{kind}.gguf", "--tokens", ids, "-n", 2, "--temperature", 0, "--json")
    for kv in ["f32", "f16", "bf16", "f8_e4m3", "q8_0", "q4_0", "tq3_0"]:
        good("run", model, "--tokens", ids, "-n", 2, "--temperature", 0, "--json", "--kv", kv)
    whole = model.read_bytes()
    cut = work / "cut.gguf"
    cut.write_bytes(whole[:-1000])
    bad(65, "truncated", "run", cut, "--prompt", "x")
    wrong = whole.replace(b"blk.2.attn_q.weight", b"blk.2.attn_Q.weight")
    (work / "renamed.gguf").write_bytes(wrong)
    bad(65, "blk.2.attn_q", "run", work / "renamed.gguf", "--tokens", ids, "-n", 1)
    (work / "arch.gguf").write_bytes(whole.replace(b"\x06\x00\x00\x00\x00\x00\x00\x00laguna", b"\x06\x00\x00\x00\x00\x00\x00\x00lagune", 1))
    bad(65, "lagune", "run", work / "arch.gguf", "--tokens", ids, "-n", 1)
    long = work / "long.json"
    long.write_text(json.dumps([100] * 5000))
    bad(64, "5000", "run", model, "--tokens", long, "-n", 1)
    (work / "range.json").write_text("[1, 99999]")
    bad(64, "99999", "run", model, "--tokens", work / "range.json", "-n", 1)
    (work / "junk.json").write_text("[1, ")
    bad(65, "junk.json", "run", model, "--tokens", work / "junk.json", "-n", 1)
    bad(64, "q9_z", "quantize", model, work / "x.gguf", "--type", "q9_z")
    bad(64, "only random weights", "quantize", model, work / "x.gguf", "--type", "mixed")
    importance_matrices(model, ids)
    good("synth", work / "mixed.gguf", "--shape", "laguna-tiny", "--type", "mixed")
    expect(len(good("run", work / "mixed.gguf", "--prompt", "a", "-n", 4, "--ignore-eos")) > 0, "fifteen types in one file run")
    bad(64, "laguna-xxl", "synth", work / "x.gguf", "--shape", "laguna-xxl")
    if run("run", model, "--tokens", ids, "-n", 1, "--device", "cuda").returncode != 0:  # no GPU: a sentence, not a crash
        for command in (["run", model, "--tokens", ids, "-n", 1], ["bench", model], ["ppl", model, "--text", ids]):
            bad(69, "CUDA", *command, "--device", "cuda")
    expect(not (work / "x.gguf").exists(), "a failed command leaves no file")
    good("bench", model, "--prompt", 32, "--gen", 8, "--repeat", 1, timeout=300)
    table = json.loads(good("bench", model, "--device", "cpu", "--frontier=32,64,99999999", "--gen", 8, "--repeat", 2,
                            "--batch", "1,3", "--profile", "--json", timeout=300))
    names = [row["what"] for row in table["rows"]]
    expect(names == ["prefill 32", "prefill 64", "decode at 32", "decode 3 x at 32", "decode at 64", "decode 3 x at 64"],
           f"bench measures every frontier: {names}")
    for row in table["rows"]:
        expect(len(row["tok_s"]) == 2 and row["bytes"] > 0 and row["flops"] > 0 and len(row["ops"]) > 3,
               f"a bench row is complete: {row['what']}")
        expect(abs(sum(op["seconds"] for op in row["ops"]) - row["ops_seconds"]) < 1e-9, "the ops add up")
    bad(64, "--frontier", "bench", model, "--frontier=12,x")
    other, plot = work / "other.json", work / "bench.svg"
    other.write_text(json.dumps([{"n_prompt": 32, "n_gen": 0, "n_depth": 0, "avg_ts": 1e6}, {"n_prompt": 0, "n_gen": 8, "n_depth": 4, "avg_ts": 5}]))
    shown = json.loads(good("bench", model, "--device", "cpu", "--prompt", 32, "--depth", 4, "--gen", 8, "--repeat", 1, "--json",
                            "--plot", plot, "--plot-with", f"another={other}", timeout=300))
    expect(len(shown["rows"]) == 2 and plot.read_text().count("<rect") == 2 + 2 * 3 and "1,000,000" in plot.read_text(),
           f"bench --plot draws both programs' prompts, answers and first tokens: {plot.read_text()}")
    bad(64, "NAME=FILE", "bench", model, "--plot", plot, "--plot-with", other)
    for command in ["bench", "ab", "niah"]:
        bad(64, "rsvg-convert", command, model, "--plot", work / "plot.PNG", path="/nowhere")
        expect(not (work / "plot.PNG").exists(), f"{command} writes no PNG that is none")
    tools = work / "tools"
    tools.mkdir()
    short = ["bench", model, "--device", "cpu", "--prompt", 8, "--depth", 4, "--gen", 2, "--repeat", 1]
    for convert, code in [('shift 4; echo "PNG of" >"$2"; /bin/cat "$3" >>"$2"', 0), ("exit 3", 1)]:
        (tools / "rsvg-convert").write_text(f"#!/bin/sh\n{convert}\n")
        (tools / "rsvg-convert").chmod(0o755)
        done = run(*short, "--plot", work / "p.png", path=tools)
        expect((done.returncode == 0) == (code == 0) and (code == 0 or b"ended with 3" in done.stderr), f"a PNG, {convert}", done)
        expect((work / "p.png").read_text().startswith("PNG of\n<svg"), "rsvg-convert's own file is the plot")
        expect((work / "p.png.svg").exists() == (code != 0), "the SVG stays where no PNG came of it")
    other.write_text("{}")
    bad(65, "llama-bench", "bench", model, "--plot", plot, "--plot-with", f"a={other}")
    bad(66, "nowhere.json", "bench", model, "--plot", plot, "--plot-with", f"a={work}/nowhere.json")
    table = json.loads(good("bench", model, "--device", "cpu", "--prompt", 16, "--depth", 20, "--verify-rows", "1,5", "--gen", 4,
                            "--repeat", 2, "--profile", "--json", timeout=300))
    checked = table["rows"][2:]
    expect([(row["what"], row["rows"], row["tokens"]) for row in checked] == [("verify 1 at 20", 1, 4), ("verify 5 at 20", 5, 20)],
           f"bench checks rows of one sequence: {checked}")
    expect(all(len(row["tok_s"]) == 2 and len(row["ops"]) > 3 for row in checked), "a row of checks is complete")
    expect(checked[1]["bytes"] > checked[0]["bytes"], "more rows read more experts")
    load = json.loads(good("bench", model, "--device", "cpu", "--serve", "--prompt", 16, "--batch", "1,2", "--gen", 4,
                           "--json", timeout=300))
    scorer = ROOT / "tests/fixtures/qwen3_tied"
    rows = json.loads(good("bench", scorer, "--device", "cpu", "--scorer", "--prompt", 300, "--turn", 100, "--question", 8,
                           "--score-layers", "0,2", "--alpha", 0.5, "--repeat", 1, "--json"))["rows"]
    expect([(row["what"], row["tokens"]) for row in rows] == [("whole", 300), ("turn", 300)] and rows[1]["prefix_bytes"] > 0,
           f"bench --scorer measures prompts and turns: {rows}")
    bad(64, "--question", "bench", scorer, "--device", "cpu", "--scorer", "--prompt", 8, "--question", 8)
    bad(65, "layer 3", "bench", scorer, "--device", "cpu", "--scorer", "--prompt", 300, "--score-layers", 3)
    expect([row["sequences"] for row in load["results"]] == [1, 2], "bench --serve measures each number of answers")
    expect(all(len(row["tok_s"]["values"]) == 3 for row in load["results"]), "bench --serve measures each stretch")
    load = json.loads(good("bench", model, "--device", "cpu", "--serve", "--prompt", 16, "--beside", "2,100", "--agent",
                           "3,600", "--rate", 50, "--requests", 3, "--gen", 4, "--json", timeout=300))
    expect([row["kind"] for row in load["results"]] == ["open", "beside", "agent"], "bench --serve measures what is asked")
    expect(load["results"][2]["cached_share_of_known"] == 1, "an agent's turns come from the cache")
    bad(64, "--serve", "bench", model, "--rate", 3)
    bad(64, "--profile", "bench", model, "--serve", "--profile")
    text = work / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 20)
    expect("perplexity" in good("ppl", model, "--text", text, "--window", 64), "ppl prints a perplexity")
    (work / "needles.json").write_text(json.dumps([{"prompt": "quick", "answer": ""}]))
    rows = json.loads(good("ppl", model, "--text", text, "--window", 64, "--needles", work / "needles.json", "--kv-types",
                           "f32,q4_0", "--json"))
    expect([row["kv"] for row in rows] == ["f16", "f32", "q4_0"] and rows[0]["divergence"] == 0 and
           rows[2]["divergence"] > 0 and all(row["found"] == 1 for row in rows), f"ppl compares K/V types: {rows}")
    (work / "needles.json").write_text('[{"prompt": 1}]')
    bad(65, "needles.json", "ppl", model, "--text", text, "--needles", work / "needles.json", "--kv-types", "q8_0")
    rows = json.loads(good("ppl", model, "--text", text, "--window", 256, "--attention-windows", "64,256", "--json"))
    expect([row["kv"] for row in rows] == ["all", "64", "256"] and rows[1]["divergence"] > 0 == rows[2]["divergence"],
           f"ppl --attention-windows: one of 64 loses something: {rows}")
    bad(64, "--attention-window 8: expected 64 tokens or more", "run", model, "-p", "x", "--attention-window", 8)
    return model


def demo_model(model):
    # A debug check of the embedded model: greedy output repeats, the closing line is complete.
    done = run("run", "--prompt", "def add(a, b):\n", "-n", 24, "--temperature", 0)
    expect(done.returncode == 0, "the demo model completes code", done)
    closing = done.stderr.decode().strip().splitlines()[-1] if done.stderr.strip() else ""
    for part in ["prefill", "decode", "tok/s", "GB/s", "%", "K/V", "hash"]:
        expect(part in closing, f"the closing line has {part}: {closing!r}")
    same = run("run", "--prompt", "def add(a, b):\n", "-n", 24, "--temperature", 0, "--chunk", 1)
    hash_of = lambda text: re.findall(r"hash ([0-9a-f]+)", text.decode())[-1:]
    expect(hash_of(done.stderr) == hash_of(same.stderr) != [], "chunk 1 and the default give the same logits hash", same)
    one = good("run", "--prompt", "import os\n", "-n", 16, "--seed", 5)
    model_file = ROOT / "models/demo/laguna-demo.gguf"
    expect(good("run", model_file, "import os\n", "-n", 16, "--seed", 5) == one, "MODEL PROMPT")
    expect(good("run", "-n", 16, "--seed", 5, stdin=b"import os\n") == one, "a prompt in a pipe")
    expect(good("run", model_file, "-n", 16, "--seed", 5, stdin=b"import os\n") == one, "and behind a model")
    bad(64, "exclude each other", "run", model_file, "x", "-p", "y")
    bad(64, "no prompt", "run", model_file)
    bad(66, "a prompt goes behind the model", "run", "def fibonacci(n):")
    two = good("run", "--prompt", "import os\n", "-n", 16, "--seed", 5)
    expect(one == two, "the same seed gives the same text")
    reply = json.loads(good("chat", "--tools", ROOT / "examples/tools.json", "--temperature", 0, "--json", "--message",
                            "Please brew tea: kind darjeeling, cups 3."))
    calls = reply.get("tool_calls", [])
    expect(len(calls) == 1 and calls[0]["function"]["name"] == "brew_tea", f"the demo model calls the right tool: {reply}")
    if calls:
        arguments = json.loads(calls[0]["function"]["arguments"])
        expect(arguments == {"kind": "darjeeling", "cups": 3}, f"with the right arguments: {arguments}")
    made = reply["usage"]["completion_tokens"]
    cut = json.loads(good("chat", "--tools", ROOT / "examples/tools.json", "--temperature", 0, "--json", "-n", made - 4,
                          "--message", "Please brew tea: kind darjeeling, cups 3."))
    partial = cut.get("incomplete_tool_calls", [])
    expect("tool_calls" not in cut and cut["finish_reason"] == "length" and [c["name"] for c in partial] == ["brew_tea"] and
           partial[0]["arguments"].startswith("{") and not partial[0]["arguments"].endswith("}"),
           f"a call that -n cuts short is shown as such, unfinished: {cut}")


def drafting_ahead():
    same = ["--prompt", "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n", "-n", 60, "--json"]
    for sampling in [["--temperature", 0], ["--temperature", 0.7, "--seed", 3]]:
        plain = json.loads(good("run", *same, *sampling))
        for flags in [["auto"], ["5"], ["7", "--draft-tree", 12]]:
            drafted = json.loads(good("run", *same, *sampling, "--drafter", "ngram", "--draft-width", *flags))
            expect(drafted["tokens"] == plain["tokens"] and drafted["logits_hash"] == plain["logits_hash"],
                   f"drafts ({flags}, {sampling}) change nothing")
            expect(drafted["speculation"]["steps"] <= len(plain["tokens"]), f"steps are counted: {drafted['speculation']}")
    bad(64, "--draft-width", "run", "--prompt", "x", "--drafter", "ngram", "--draft-width", "many")
    bad(64, "draft_width", "run", "--prompt", "x", "--drafter", "ngram", "--draft-width", "64")
    bad(64, "--drafter", "run", "--prompt", "x", "--draft-tree", "4")
    bad(66, "nowhere.gguf", "run", "--prompt", "x", "--drafter", work / "nowhere.gguf")
    bad(64, "no DFlash drafter", "run", "--prompt", "x", "--drafter", ROOT / "models/demo/laguna-demo.gguf")
    bad(64, "ngram", "serve", "--drafter", ROOT / "models/demo/laguna-demo.gguf", "--port", 0)
    prompts = work / "prompts.jsonl"
    prompts.write_text('{"id": "a", "suite": "code", "prompt": "def add(a, b):\\n"}\n'
                       '{"question_id": 2, "category": "chat", "turns": ["What is 17 times 23?", "And 18?"]}\n\n'
                       '{"messages": [{"role": "user", "content": "Sort these words: pear, apple, fig."}]}\n')
    ab = ["ab", "--prompts", prompts, "--widths", "2,5", "--trees", "6", "-n", 24]
    result = json.loads(good(*ab, "--json", "--plot", work / "ab.svg"))
    names = [mode["mode"] for mode in result["modes"]]
    expect(names == ["plain", "auto", "chain 2", "chain 5", "tree 6"], f"modes of ab: {names}")
    expect(result["drafter"] == "demo" and result["modes"][3]["tokens_per_step"] > 1.3,
           f"the demo model's own drafter, if none is named: {result['modes'][3]}")
    expect(result["mismatches"] == 0 and [p["id"] for p in result["prompts"]] == ["a", "2", "4"], f"prompts of ab: {result}")
    expect(all(m["tok_s"] > 0 and m["mismatches"] == 0 for m in result["modes"]), "every mode has a speed")
    import xml.dom.minidom
    plot = xml.dom.minidom.parse(str(work / "ab.svg"))
    expect(len(plot.getElementsByTagName("rect")) == 5, "the plot has a bar for each slot of the widest chain")
    table = good(*ab, "--temperature", 0.7, "--drafter", "ngram")
    expect("speed-up" in table and "chain 5" in table, f"the table of ab: {table}")
    prompts.write_text('{"id": "a"}\n')
    bad(65, "prompts.jsonl:1", "ab", "--prompts", prompts)
    bad(66, "nowhere.jsonl", "ab", "--prompts", work / "nowhere.jsonl")
    bad(64, "draft_width", "ab", "--widths", "0")


def long_texts():
    file, plot = work / "niah.json", work / "niah.svg"
    niah = ["niah", "--lengths", "512,600", "--depths", "0,100", "--tasks", "single,tool"]
    table = good(*niah, "--json", file, "--plot", plot)
    expect("whole prompts" in table and "first token" in table, f"the table of niah: {table}")
    result = json.loads(file.read_text())
    answers = result["answers"]
    expect(len(answers) == 8 and all(a["prompt_tokens"] <= a["length"] - 64 for a in answers), f"questions of niah: {answers}")
    expect(all(a["kept_tokens"] == a["prompt_tokens"] and 0 < a["ttft_s"] <= a["seconds"] for a in answers), "whole prompts are read")
    right = [a["right"] for a in answers if a["task"] == "single"]
    expect(sum(right) >= 3, f"the demo model finds single facts: {answers}")
    expect(all(a["right"] == (re.search(rf"\b{a['expected']}\b", a["answer"]) is not None) for a in answers), "answers are judged")
    import xml.dom.minidom
    rects = xml.dom.minidom.parse(str(plot)).getElementsByTagName("rect")
    expect(len(rects) == 3 * 4, f"the plot of niah has a cell for each task (and all), length and depth: {len(rects)}")
    again = good(*niah, "--json", file, "--resume")
    expect(again == table and json.loads(file.read_text()) == result, "niah --resume asks nothing twice, and shows all")
    file.unlink()
    # 768 tokens of contents are kept in any case: shorter prompts stay whole.
    short = ["niah", "--lengths", "4K", "--depths", "0,50,100", "--tasks", "single", "--keep", "dense,0.3", "--scorer", "demo"]
    table = good(*short, "--json", file)
    expect("keep 0.3" in table and "of it scoring" in table, f"the table of niah with a scorer: {table}")
    answers = json.loads(file.read_text())["answers"]
    short = [a for a in answers if a["keep"] < 1]
    expect(len(answers) == 6 and all(0 < a["scoring_s"] < a["ttft_s"] and a["kept_tokens"] < 0.35 * a["prompt_tokens"] for a in short),
           f"compressed prompts are short: {short}")
    expect(sum(a["right"] for a in short) >= 2, f"the demo scorer keeps what answers: {short}")
    good(*niah, "--json", file)
    bad(65, "other settings", *niah, "--json", file, "--resume", "--seed", 2)
    bad(64, "--json", *niah, "--resume")
    bad(64, "--scorer", *niah, "--keep", "dense,0.1")
    bad(64, "--keep", *niah, "--keep", "2")
    bad(64, "--lengths", *niah, "--lengths", "4Q")
    bad(64, "context", *niah, "--lengths", "1024K")
    bad(64, "--tasks", *niah, "--tasks", "single,triple")
    bad(64, "at least", *niah, "--lengths", "80")
    bad(64, "chat template", "niah", ROOT / "tests/fixtures/qwen3_tied", "--lengths", "400")
    file.unlink()
    process = subprocess.Popen([str(riptide), "niah", "--lengths", "400", "--tasks", "single", "--count", "2000", "--json", str(file)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while not hears_ctrl_c(process) and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(1.0)  # for a few answers
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    known = json.loads(file.read_text())["answers"] if file.exists() else None
    expect(process.returncode == 130 and known is not None and len(known) < 10000, f"Ctrl-C ends niah with what is there: {process.returncode}")


def hears_ctrl_c(process):
    """Whether a process has a handler for SIGINT."""
    caught = re.search(r"^SigCgt:\s+([0-9a-f]+)$", pathlib.Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return int(caught[1], 16) >> (signal.SIGINT - 1) & 1


def text_commands(model):
    text = work / "hello.txt"
    text.write_text("hello world 123\r\n<think>")
    ids = json.loads(good("tokenize", "--text", text, "--json"))
    expect(isinstance(ids["tokens"], list) and 18 not in ids["tokens"], "tokenize keeps special strings as text")
    special = json.loads(good("tokenize", "--text", text, "--json", "--parse-special"))
    expect(18 in special["tokens"], "--parse-special finds <think>")
    with_bos = json.loads(good("tokenize", "--text", text, "--json", "--add-special"))
    expect(with_bos["tokens"] == [2] + ids["tokens"], "--add-special prepends BOS")
    template = work / "t.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    variables = work / "v.json"
    variables.write_text('{"messages": [{"role": "user", "content": "hi"}]}')
    expect(good("template", template, "--vars", variables) == "user: hi\n", "template renders")
    (work / "loop.jinja").write_text("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")
    bad(65, "loop.jinja", "template", work / "loop.jinja", "--vars", variables)
    (work / "deep.jinja").write_text("{{ " + "(" * 100000 + "1" + ")" * 100000 + " }}")
    bad(65, "deep.jinja", "template", work / "deep.jinja", "--vars", variables)
    (work / "deep.json").write_text("[" * 100000 + "]" * 100000)
    bad(65, "deep.json", "template", template, "--vars", work / "deep.json")


def serve():
    bad(64, "--port", "serve", "--port", "70000")
    bad(64, "--keep-alive", "serve", "--keep-alive", "-5")  # help leaves it out, an error does not
    bad(64, "--api-key-file", "serve", "--host", "0.0.0.0")
    bad(64, "--host", "serve", "--host", "nowhere")
    (work / "keys.txt").write_text("# none\n\n")
    bad(65, "keys.txt", "serve", "--api-key-file", work / "keys.txt")
    bad(66, "nowhere.gguf", "serve", work / "nowhere.gguf", "--port", 0)
    (work / "keys.txt").write_text("# one\nsecret\n")
    with Server("--ctx", 2048, "--api-key-file", work / "keys.txt") as server:
        expect(len(server.log().splitlines()) <= 12, f"riptide serve says where it listens: {server.log()}")
        answer = server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is 12 plus 30?"}], "temperature": 0},
                            {"Authorization": "Bearer secret"})
        expect("42" in answer["choices"][0]["message"]["content"], f"the demo model answers over HTTP: {answer}")
        bad(69, "in use", "serve", "--port", server.port)


def interrupt(model):
    process = subprocess.Popen([str(riptide), "run", "--prompt", "x", "-n", "4000", "--ignore-eos"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    process.stdout.read(1)  # it answers
    process.send_signal(signal.SIGINT)
    try:
        _, error = process.communicate(timeout=60)
        expect(process.returncode == 130 and b"tok/s" in error, f"Ctrl-C stops cleanly with statistics: {process.returncode} {error[-300:]!r}")
    except subprocess.TimeoutExpired:
        process.kill()
        expect(False, "Ctrl-C stops the run")


if __name__ == "__main__":
    help_and_usage()
    hidden_flags()
    kernels()
    fits()
    bad_files()
    tiny = synthetic_models()
    text_commands(tiny)
    demo_model(tiny)
    drafting_ahead()
    long_texts()
    serve()
    interrupt(tiny)
    sys.exit(told("the command line"))
