#!/usr/bin/env python3
"""Packs what other software says is right, where its licence lets us pass it on. usage: pack.py FOLDER
Writes data.tar.xz beside this script: the same bytes for the same files. FOLDER holds the whole collection (templates,
tokenizers, quants, schemas); NOTICE names the sources and licences of what is packed."""
import gzip
import io
import json
import pathlib
import sys
import tarfile

TEMPLATES = {  # of models under Apache-2.0 and MIT
    "Apertus-8B-Instruct", "GLM-4.6", "HuggingFaceTB-SmolLM3-3B", "MiMo-VL", "MiniMax-M1", "MiniMax-M2", "Mistral-Small-3.2-24B-Instruct-2506",
    "Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "Qwen3-Coder", "Qwen3.5-4B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai-DeepSeek-V3.1",
    "deepseek-ai-DeepSeek-V3.2", "ibm-granite-granite-3.3-2B-Instruct", "ibm-granite-granite-4.0", "microsoft-Phi-3.5-mini-instruct",
    "mistralai-Mistral-Nemo-Instruct-2407", "poolside-Laguna-XS-2.1", "poolside-Laguna-XS.2", "unsloth-mistral-Devstral-Small-2507"}
TOKENIZERS = {"gpt-2", "qwen2", "qwen35"}
SCHEMAS = {"BFCL", "Glaiveai2K", "Handwritten", "JME", "JsonSchemaStore", "Kubernetes", "MCPspec", "Snowplow", "Synthesized"}


def packed(folder):
    """(name, bytes) of each file, in order."""
    for name in sorted(TEMPLATES):
        for ending in (".cases.json", ".jinja"):
            yield f"templates/{name}{ending}", (folder / f"templates/{name}{ending}").read_bytes()
    for name in sorted(TOKENIZERS):
        for ending in (".cases.json", ".gguf"):
            yield f"tokenizers/ggml-vocab-{name}{ending}", (folder / f"tokenizers/ggml-vocab-{name}{ending}").read_bytes()
    for path in sorted((folder / "quants").glob("*.bin")):
        if not path.name.endswith(".dec.bin"):
            yield f"quants/{path.name}", path.read_bytes()
    lines = gzip.decompress((folder / "schemas/real.jsonl.gz").read_bytes()).splitlines(keepends=True)
    origin = lambda line: json.loads(line)["id"].replace("---", "_").split("_")[0]
    kept = b"".join(line for line in lines if origin(line) in SCHEMAS)
    suite = gzip.decompress((folder / "schemas/suite.jsonl.gz").read_bytes())
    for name, text in (("real", kept), ("suite", suite)):
        yield f"schemas/{name}.jsonl.gz", gzip.compress(text, mtime=0, compresslevel=1)


def main():
    out = pathlib.Path(__file__).resolve().parent / "data.tar.xz"
    with tarfile.open(out, "w:xz", format=tarfile.USTAR_FORMAT, preset=9) as archive:
        for name, content in packed(pathlib.Path(sys.argv[1])):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    print(f"{out}: {out.stat().st_size / 1e6:.2f} MB")


main()
