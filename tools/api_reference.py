#!/usr/bin/env python3
"""Writes docs/api.md from src/server/openapi/openapi.json.

usage: api_reference.py [--check]
       --check: fails if the committed page is not what the file says, if the server's sources read a field of a request
       that the file does not have, or if the file has one that they do not name
       api_reference.py --self-test
"""
import json
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/server/openapi/openapi.json"
PAGE = ROOT / "docs/api.md"
SCHEMAS = "#/components/schemas/"
# What makes replies, and reads nothing of requests.
REPLIES = re.compile(r"_reply\.cpp$|^(?:openai_chat|openai_completion|api_error|response_store|live_requests|reply_parts)\.cpp$")
READ = re.compile(r'\.(?:boolean|number|integer|string|filled|array|object|find|if_contains)\("(\w+)"')
LISTS = re.compile(r"(?:\bkey : |first_string\(fields, |parse_max_tokens\(\w+, |heading_of\(block, |kSame\[\] = |k\w*Forms\[\] = )\{(.*?)\}\s*[;)]", re.S)
COUNTS = [("minItems", "at least", "of them"), ("maxItems", "at most", "of them"), ("maxProperties", "at most", "entries"),
          ("maxLength", "at most", "bytes")]
CODE = re.compile(r"`[^`]+`")
WORD = re.compile(r'"([a-z]\w*)"')


def text(schema: dict) -> str:
    return schema.get("description", "").replace("|", "\\|")


def wrapped(line: str) -> list[str]:
    """Lines that fit; rows of tables and what stands in backquotes stay whole."""
    if line.startswith("|"):
        return [line]
    whole = CODE.sub(lambda match: match.group().replace(" ", "\0"), line)
    lines = textwrap.wrap(whole, 140, subsequent_indent="  " if line.startswith("- ") else "", break_long_words=False, break_on_hyphens=False)
    return [part.replace("\0", " ") for part in lines] or [""]


class Reference:
    def __init__(self, api: dict):
        self.api = api
        self.schemas = api["components"]["schemas"]

    def resolved(self, schema: dict) -> dict:
        """What a schema refers to, with what stands beside the reference."""
        while "$ref" in schema:
            target = self.api
            for step in schema["$ref"].removeprefix("#/").split("/"):
                target = target[step]
            schema = target | {key: value for key, value in schema.items() if key != "$ref"}
        return schema

    def has_section(self, name: str) -> bool:
        schema = self.schemas[name]
        return any(each.get("properties") for each in [schema, *schema.get("anyOf", []), *schema.get("oneOf", [])])

    def fields(self, schema: dict) -> dict:
        """The properties of an object, or of the alternatives that are one."""
        found = {}
        for each in [schema, *schema.get("anyOf", [])]:
            found |= each.get("properties", {})
        return found

    def bounds(self, schema: dict) -> str:
        low, high = schema.get("minimum"), schema.get("maximum")
        if "exclusiveMinimum" in schema:
            return f", more than {schema['exclusiveMinimum']}, at most {high}"
        if high == 2**31 - 1:
            high = None
        if low is not None and high is not None:
            return f", {low} to {high}"
        if low is not None:
            return f", at least {low}"
        if 0 in (schema.get("maxLength"), schema.get("maxItems")):
            return ", empty"
        if "minItems" in schema and "maxItems" in schema:
            return f", {schema['minItems']} to {schema['maxItems']:,} of them"
        counts = [f"{words} {schema[key]:,} {unit}" for key, words, unit in COUNTS if key in schema]
        return ", " + ", ".join(counts) if counts else ""

    def kind(self, schema: dict) -> str:
        name = schema.get("$ref", "").removeprefix(SCHEMAS)
        if name in self.schemas and self.has_section(name):
            return f"[{name}](#{name.lower()})"
        schema = self.resolved(schema)
        if "const" in schema:
            return f"`{json.dumps(schema['const'])}`"
        if "enum" in schema:
            return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return " or ".join(self.kind(each) for each in schema[key])
        kinds = schema.get("type", "any")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        words = [f"array of {self.kind(schema['items'])}" if kind == "array" and "items" in schema else kind for kind in kinds]
        return " or ".join(words) + self.bounds(schema)

    def rows(self, fields: dict, required: list[str], before: str = "") -> list[str]:
        out = []
        for name, schema in fields.items():
            whole = self.resolved(schema)
            default = f"`{json.dumps(whole['default'])}`" if "default" in whole else "required" if name in required else ""
            out.append(f"| `{before}{name}` | {self.kind(schema)} | {default} | {text(whole)} |")
            inner = {} if "$ref" in schema else self.fields(schema)
            if not inner and schema.get("type") == "array" and "properties" in schema["items"]:
                inner, name = schema["items"]["properties"], name + "[]"
            out += self.rows(inner, [], f"{before}{name}.")
        return out

    def table(self, schema: dict, reply: bool) -> list[str]:
        if "oneOf" in schema:
            out = ["| `type` | fields | |", "|---|---|---|"]
            for each in schema["oneOf"]:
                kinds = self.kind(each["properties"]["type"]).replace('"', "")
                names = [f"`{name}`: {self.kind(value)}" for name, value in each["properties"].items() if name not in ("type", "sequence_number")]
                out.append(f"| {kinds} | {'; '.join(names)} | {text(each)} |")
            return out
        out = []
        if "allOf" in schema:
            out += [f"All fields of {', '.join(map(self.kind, schema['allOf']))}, and:", ""]
        required = [] if reply else schema.get("required", [])
        head = ["| field | type | default | |", "|---|---|---|---|"]
        rows = self.rows(self.fields(schema), required)
        if all(row.split(" | ")[2] == "" for row in rows):
            head = ["| field | type | |", "|---|---|---|"]
            rows = [" | ".join(part for i, part in enumerate(row.split(" | ")) if i != 2) for row in rows]
        return out + head + rows

    def route(self, path: str, method: str, about: dict) -> list[str]:
        out = [f"### `{method.upper()} {path}`", "", about["summary"], ""]
        for parameter in about.get("parameters", []):
            out += [f"In the {parameter['in']}: `{parameter['name']}`, {parameter['description']}.", ""]
        body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
        if body:
            names = [each["$ref"].removeprefix(SCHEMAS) for each in body.get("anyOf", [body])]
            out += ["Body: " + " or ".join(f"[{name}](#{name.lower()})" if self.has_section(name) else name for name in names), ""]
        for status, reply in about["responses"].items():
            reply = self.resolved(reply)
            parts = []
            for kind, content in reply.get("content", {}).items():
                parts.append(f"{self.kind(content['schema'])}" + (" in a stream" if kind in ("text/event-stream", "application/x-ndjson") else ""))
            if status == "default":
                out.append(f"- Errors: {', '.join(parts)}")
            else:
                out.append(f"- {status}: {', '.join(parts)}{'. ' if parts else ''}{text(reply)}")
        return out + [""]

    def page(self) -> str:
        info, routes = self.api["info"], self.api["paths"]
        out = ["# API", "", "Made by `tools/api_reference.py` from `src/server/openapi/openapi.json`, which a server gives at `/openapi.json`.",
               "What the fields are for, and how requests fare: [server.md](server.md).", ""]
        out += [f"- {line}" for line in info["description"].splitlines()] + [""]
        out += ["## Errors", "", "| status | |", "|---|---|"]
        failure = self.api["components"]["responses"]["Error"]
        out += [f"| {status} | {words} |" for status, words in failure["x-statuses"].items()]
        out += [""] + [f"- [{name}](#{name.lower()}): {text(reply)}" for name, reply in self.api["components"]["responses"].items()] + [""]
        for tag in self.api["tags"]:
            out += [f"## {tag['name']}", ""] + ([tag["description"], ""] if "description" in tag else [])
            for path, methods in routes.items():
                for method, about in methods.items():
                    if tag["name"] in about["tags"]:
                        out += self.route(path, method, about)
        asked = self.asked()
        for title, wanted in (("Bodies of requests", True), ("Replies", False)):
            out += [f"## {title}", ""]
            for name, schema in self.schemas.items():
                if self.has_section(name) and (name in asked) == wanted:
                    out += [f"### {name}", ""] + ([text(schema), ""] if text(schema) else [])
                    out += self.table(schema, not wanted) + [""]
        return "\n".join(part for line in out for part in wrapped(line)).rstrip() + "\n"

    def asked(self) -> set[str]:
        """The schemas that bodies of requests are made of."""
        seen, todo = set(), [json.dumps(about.get("requestBody", {})) for methods in self.api["paths"].values() for about in methods.values()]
        while todo:
            for name in re.findall(SCHEMAS + r"(\w+)", todo.pop()):
                if name not in seen:
                    seen.add(name)
                    todo.append(json.dumps(self.schemas[name]))
        return seen

    def names_asked(self) -> set[str]:
        found = set()

        def walk(node) -> None:
            if isinstance(node, dict):
                if isinstance(node.get("properties"), dict):
                    found.update(node["properties"])
                for value in node.values():
                    walk(value)
            elif isinstance(node, list):
                for value in node:
                    walk(value)
        walk([self.schemas[name] for name in self.asked()])
        return found


def names_read(source: str) -> set[str]:
    """Names of fields that a source reads by themselves or in lists."""
    found = set(READ.findall(source))
    for words in LISTS.findall(source):
        found.update(WORD.findall(words))
    return found


def differences(reference: Reference) -> list[str]:
    sources = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "src/server/api").rglob("*.cpp"))}
    chat = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src/text/chat").glob("*.cpp")))
    known = reference.names_asked()
    problems = []
    for path, source in sources.items():
        if not REPLIES.search(path.name):
            problems += [f"{path.relative_to(ROOT)}: reads `{name}`, which {SOURCE.name} does not have" for name in sorted(names_read(source) - known)]
    named = set(WORD.findall("".join(sources.values()) + chat))
    problems += [f"{SOURCE.name}: `{name}` is in no source that reads requests" for name in sorted(known - named)]
    return problems


def self_test() -> None:
    """The check must be able to fail."""
    planted = 'f.string("one"); for (const char* key : {"two", "three"}) x; first_string(fields, {"four"}); a = kSame[] = {"five"};'
    assert names_read(planted) == {"one", "two", "three", "four", "five"}, names_read(planted)
    api = json.loads(SOURCE.read_text(encoding="utf-8"))
    del api["components"]["schemas"]["Sampling"]["properties"]["top_k"], api["components"]["schemas"]["MessagesRequest"]["properties"]["top_k"]
    api["components"]["schemas"]["Common"]["properties"]["never_heard_of"] = {"type": "string"}
    problems = "\n".join(differences(Reference(api)))
    assert "reads `top_k`" in problems and "`never_heard_of`" in problems, problems
    assert Reference(api).page() != PAGE.read_text(encoding="utf-8")


def main() -> int:
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    reference = Reference(json.loads(SOURCE.read_text(encoding="utf-8")))
    problems, page = differences(reference), reference.page()
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        problems.append("docs/api.md is not what openapi.json says: run tools/api_reference.py")
    print("\n".join(problems) if problems else f"api: {len(reference.api['paths'])} paths, {len(reference.names_asked())} names of fields")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
