"""Generates tool-calling conversations: invented and everyday tools, single and parallel calls, results, refusals.

An action is one call together with the words that ask for it. Names, parameters and values come from a space too large
to memorise, so the only way to be right is to read the schema and copy.
"""
import re

import natural_tools
import tasks
import values
import words
from chat import dumps

PARAMETER_NAMES = {
    "string": """name title city path file query text message email url user date time location subject id code label language
topic author source destination address country username comment note reason recipient channel keyword region""".split(),
    "integer": """count limit days hours minutes seconds age size width height year quantity amount page priority retries
timeout port depth length level index total seats rooms copies""".split(),
    "number": """price ratio threshold temperature weight distance rate score factor latitude longitude speed volume opacity
discount tolerance scale""".split(),
    "boolean": """force verbose recursive enabled public urgent include_hidden dry_run overwrite notify case_sensitive archived
private compress""".split(),
    "array": "tags names files ids items recipients emails cities keywords labels colors numbers users columns paths".split()}
SUFFIXES = {"string": ["name", "id", "title", "code", "path", "key"],
            "integer": ["count", "limit", "size", "number", "index", "level"],
            "number": ["rate", "ratio", "weight", "score", "price"], "boolean": ["enabled", "mode", "only", "check"],
            "array": ["list", "names", "ids", "items"]}
ENUMS = [["low", "medium", "high"], ["asc", "desc"], ["json", "csv", "xml"], ["small", "medium", "large"],
         ["daily", "weekly", "monthly"], ["debug", "info", "warning", "error"], ["read", "write", "admin"],
         ["celsius", "fahrenheit"], ["draft", "published", "archived"], ["fast", "normal", "slow"]]
TYPES = ["string"] * 9 + ["integer"] * 5 + ["number"] * 2 + ["boolean"] * 3 + ["enum"] * 3 + ["array"] * 2


class Pools:
    """The words to draw from: those of training, or those held out for evaluation."""

    def __init__(self, extra=(), evaluation=False):
        self.evaluation = evaluation
        self.nouns = words.split(list(words.NOUNS) + list(extra), evaluation)
        self.adjectives = words.split(words.ADJECTIVES, evaluation)
        self.verbs = words.VERBS if evaluation else words.split(words.VERBS, False)
        self.natural = natural_tools.table(evaluation)


def plain(name):
    """A name as people say it: snake and camel case fall apart into words."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda m: " " + m.group(1).lower(), name).replace("_", " ").replace("-", " ")


def cased(rng, parts):
    form = rng.random()
    if form < 0.12:
        return parts[0] + "".join(p.capitalize() for p in parts[1:])
    return ("-" if form < 0.15 else "_").join(parts)


def parameter(rng, pools, taken):
    kind = rng.choice(TYPES)
    base = "string" if kind == "enum" else kind
    form = rng.random()
    if form < 0.5 and kind != "enum":
        name = rng.choice(PARAMETER_NAMES[base])
    elif form < 0.8:
        name = f"{rng.choice(pools.nouns)}_{rng.choice(SUFFIXES[base])}"
    else:
        name = rng.choice(pools.nouns) if form < 0.93 else values.invented(rng)
    if kind == "enum" and rng.random() < 0.5:
        name = rng.choice(["mode", "format", "level", "unit", "kind", "status", "order", "category"])
    if name in taken:
        name = f"{name}_{rng.choice(pools.nouns)}"
    out = {"name": name, "type": base}
    if kind == "enum":
        out["enum"] = list(rng.choice(ENUMS)) if rng.random() < 0.5 else rng.sample(pools.nouns, rng.randint(2, 4))
    return out


def schema(rng, name, description, parameters, required):
    """The OpenAI tool object."""
    properties = {}
    described = rng.random() < 0.5
    for p in parameters:
        entry = {"type": p["type"]}
        if "enum" in p:
            entry["enum"] = p["enum"]
        if p["type"] in ("integer", "number") and rng.random() < 0.06:
            entry[rng.choice(["minimum", "default"])] = rng.choice([0, 1, 10])
        if p["type"] == "array":
            entry["items"] = {"type": p.get("items", "string")}
        if described and rng.random() < 0.8:
            entry["description"] = p.get("about") or rng.choice(["The {}", "{}", "The {} to use"]).format(
                plain(p["name"])).capitalize()
        properties[p["name"]] = entry
    inside = {"type": "object", "properties": properties, "required": required}
    if not required and rng.random() < 0.5:
        del inside["required"]
    function = {"name": name, "description": description, "parameters": inside}
    return {"type": "function", "function": function}


def invented_tool(rng, pools, verb=None, noun=None):
    """A tool nobody has: {name, phrase, verb, parameters, optional, json}."""
    verb = verb or rng.choice(pools.verbs)
    noun = noun or rng.choice(pools.nouns)
    form = rng.random()
    if form < 0.5:
        parts, phrase = [verb, noun], noun
    elif form < 0.75:
        adjective = rng.choice(pools.adjectives)
        parts, phrase = [verb, adjective, noun], f"{adjective} {noun}"
    elif form < 0.93:
        other = rng.choice(pools.nouns)
        parts, phrase = [verb, noun, other], f"{noun} {other}"
    else:
        parts, phrase = [noun, verb], noun
    name = cased(rng, parts)
    description = rng.choice(["{} the {}", "{} a {}", "{} the {}.", "{} a given {}.", "{} one {} of the user"]).format(
        verb.capitalize(), phrase)
    parameters = []
    for _ in range(rng.choices(range(6), [6, 24, 30, 22, 12, 6])[0]):
        parameters.append(parameter(rng, pools, {p["name"] for p in parameters}))
    for p in parameters:
        if p["type"] == "array" and p["name"] in ("ids", "numbers"):
            p["items"] = "integer"
    optional = {p["name"] for p in parameters if rng.random() < 0.3}
    required = [p["name"] for p in parameters if p["name"] not in optional]
    return dict(name=name, phrase=phrase, verb=verb, parameters=parameters, optional=optional,
                json=schema(rng, name, description, parameters, required))


def clause(rng, p, value, style):
    said, shown = plain(p["name"]), values.spell(rng, value)
    if style == 0:
        return f"{said} {shown}"
    if style == 1:
        return f"{said}: {shown}"
    if style == 2:
        return f"{p['name']}={shown}"
    if style == 3:
        return f"the {said} {shown}"
    if style == 4:
        return f"{shown} as the {said}"
    if style == 5:
        return f"the {said} set to {shown}"
    return f"{said} of {shown}" if p["type"] in ("integer", "number") else f"{said} {shown}"


def invented_action(rng, pools, tool):
    """(arguments, request) for an invented tool."""
    used = [p for p in tool["parameters"] if p["name"] not in tool["optional"] or rng.random() < 0.5]
    arguments = {}
    for p in used:
        value = values.draw(rng, pools, p)
        if p["type"] == "array" and p.get("items") == "integer" and isinstance(value[0], str):
            value = [rng.randint(1, 9999) for _ in value]
        arguments[p["name"]] = value
    phrase, verb = tool["phrase"], tool["verb"]
    lead = rng.choice([f"Please {verb} the {phrase}", f"Can you {verb} the {phrase}", f"{verb.capitalize()} the {phrase}",
                       f"I want to {verb} the {phrase}", f"I need you to {verb} a {phrase}", f"{verb} {phrase}",
                       f"Could you {verb} the {phrase}", f"{verb.capitalize()} a {phrase} for me", f"Use {tool['name']}",
                       f"Call {tool['name']}", f"Let's {verb} the {phrase}", f"It is time to {verb} the {phrase}"])
    asks = lead.startswith(("Can", "Could"))
    end = "?" if asks else rng.choice([".", ".", ""])
    mentioned = list(used)
    if rng.random() < 0.25:
        rng.shuffle(mentioned)
    if not mentioned:
        return arguments, lead + end
    if len(mentioned) == 1 and mentioned[0]["type"] == "string" and rng.random() < 0.4:
        joint = rng.choice(["for", "", "called", "named", "with"])
        return arguments, f"{lead} {joint} {values.spell(rng, arguments[mentioned[0]['name']])}".replace("  ", " ") + end
    form = rng.random()
    if form < 0.25:
        said = " ".join(f"{rng.choice(['Set the', 'The', 'Use the'])} {plain(p['name'])} "
                        f"{rng.choice(['to', 'is', 'as'])} {values.spell(rng, arguments[p['name']])}." for p in mentioned)
        said = re.sub(r"Set the (.*?) (is|as) ", r"Set the \1 to ", said)
        said = re.sub(r"(^|\. )The (.*?) (to|as) ", r"\1The \2 is ", said)
        return arguments, f"{lead}{end or '.'} {said}"
    style = rng.randrange(7)
    said = [clause(rng, p, arguments[p["name"]], style if rng.random() < 0.8 else rng.randrange(7)) for p in mentioned]
    joined = ", ".join(said) if style in (1, 2) or len(said) == 1 else ", ".join(said[:-1]) + " and " + said[-1]
    if style == 1 and rng.random() < 0.5:
        return arguments, f"{lead} ({joined}){end}"
    return arguments, f"{lead} {rng.choice(['with', 'with', 'using', 'where'])} {joined}{end}"


def natural_value(rng, pools, kind):
    if kind.startswith("int("):
        low, high = kind[4:-1].split("-")
        return rng.randint(int(low), int(high))
    if "|" in kind:
        return rng.choice(kind.split("|"))
    table = {"city": values.city, "person": values.person, "email": values.email, "date": values.date,
             "clock": values.clock, "id": values.identifier, "surname": values.surname,
             "country": lambda r: r.choice(values.COUNTRIES), "language": lambda r: r.choice(values.LANGUAGES),
             "color": lambda r: r.choice(values.COLORS), "bool": lambda r: r.random() < 0.5,
             "num": lambda r: round(r.random() * 100, 1),
             "path": lambda r: values.path(r, pools), "url": lambda r: values.url(r, pools),
             "phrase": lambda r: values.phrase(r, pools, 2, 5),
             "word": lambda r: r.choice(pools.nouns) if r.random() < 0.7 else values.invented(r),
             "list": lambda r: values.array(r, pools),
             "command": lambda r: r.choice([f"ls {values.path(r, pools)}", f"cat {values.path(r, pools)}", "make test", "pwd",
                                            f"grep {r.choice(pools.nouns)} {values.path(r, pools)}", "git status",
                                            f"python3 {r.choice(pools.nouns)}.py", f"mkdir {r.choice(pools.nouns)}"]),
             "sum": lambda r: f"{r.randint(2, 999)} {r.choice('+-*/')} {r.randint(2, 999)}"}
    return table[kind](rng)


def natural_tool(rng, pools, entry=None):
    """An everyday tool under one of its names."""
    entry = entry or rng.choice(pools.natural)
    renamed, parameters, required = {}, [], []
    for field in entry["fields"]:
        name = field["names"][0] if rng.random() < 0.6 else rng.choice(field["names"])
        kind = field["kind"]
        p = {"name": name, "type": "string"}
        if kind.startswith("int("):
            p["type"] = "integer"
        elif kind in ("num", "bool", "list"):
            p["type"] = {"num": "number", "bool": "boolean", "list": "array"}[kind]
        elif "|" in kind and (field["optional"] or rng.random() < 0.5):
            p["enum"] = kind.split("|")
        renamed[field["key"]] = name
        parameters.append(p)
        if not field["optional"]:
            required.append(name)
    name = entry["names"][0] if rng.random() < 0.5 else rng.choice(entry["names"])
    if rng.random() < 0.1:
        name = cased(rng, name.split("_"))
    phrase = entry["description"][0].lower() + entry["description"][1:]
    return dict(name=name, phrase=phrase, entry=entry, renamed=renamed,
                json=schema(rng, name, entry["description"] + rng.choice(["", "."]), parameters, required))


def natural_action(rng, pools, tool):
    template = rng.choice(tool["entry"]["templates"])
    asked = set(re.findall(r"{(\w+)}", template))
    arguments, shown = {}, {}
    for field in tool["entry"]["fields"]:
        if field["key"] in asked:
            value = natural_value(rng, pools, field["kind"])
            arguments[tool["renamed"][field["key"]]] = value
            text = values.spell(rng, value) if not isinstance(value, bool) else ("on" if value else "off")
            quoted = isinstance(value, str) and text[0] in "\"'"
            shown[field["key"]] = value if quoted and rng.random() < 0.5 else text
    return arguments, template.format(**shown)


JOINABLE = ("city", "word", "surname", "path", "person", "id", "language", "clock", "email", "url")


def natural_pair(rng, pools, tool):
    """Two or three calls of one everyday tool asked for in one sentence ("Weather in Rome and Oslo?"), or None."""
    template = rng.choice(tool["entry"]["templates"])
    fields = [f for f in tool["entry"]["fields"] if "{" + f["key"] + "}" in template]
    joinable = [f for f in fields if f["kind"] in JOINABLE]
    if not joinable:
        return None
    several, fixed = rng.choice(joinable), {}
    for field in fields:
        if field is not several:
            fixed[field["key"]] = natural_value(rng, pools, field["kind"])
    many = list(dict.fromkeys(natural_value(rng, pools, several["kind"]) for _ in range(rng.choice([2, 2, 2, 3]))))
    if len(many) < 2:
        return None
    before = re.search(r"(\w+) \{" + several["key"] + r"\}", template)
    again = f"{before.group(1)} " if before and before.group(1) in ("in", "for", "to") and rng.random() < 0.5 else ""
    shown = {k: ("on" if v else "off") if isinstance(v, bool) else str(v) for k, v in fixed.items()}
    shown[several["key"]] = ", ".join(many[:-1]) + rng.choice([" and ", " and also "]) + again + many[-1]
    request, actions = template.format(**shown), []
    for value in many:
        given = dict(fixed, **{several["key"]: value})
        arguments = {tool["renamed"][f["key"]]: given[f["key"]] for f in tool["entry"]["fields"] if f["key"] in given}
        actions.append(dict(tool=tool, arguments=arguments, request=request))
    return actions


def make_tool(rng, pools):
    return natural_tool(rng, pools) if rng.random() < 0.35 else invented_tool(rng, pools)


def make_action(rng, pools, tool):
    arguments, request = (natural_action if "entry" in tool else invented_action)(rng, pools, tool)
    return dict(tool=tool, arguments=arguments, request=request)


def toolbox(rng, pools, wanted, count):
    """The wanted tools among distractors; some of these share a verb or a noun with a wanted one. Names are unique."""
    tools = list(wanted)
    for _ in range(50):
        if len(tools) >= count:
            break
        model = rng.choice(wanted) if wanted else None
        if model and "entry" not in model and rng.random() < 0.4:
            same_verb = rng.random() < 0.5
            tool = invented_tool(rng, pools, verb=model["verb"] if same_verb else None,
                                 noun=None if same_verb else model["phrase"].split()[-1])
            if (tool["verb"], tool["phrase"]) == (model["verb"], model["phrase"]):
                continue
        else:
            tool = make_tool(rng, pools)
        names = {t["name"] for t in tools}
        entries = {t["entry"]["names"][0] for t in tools if "entry" in t}
        if tool["name"] not in names and not ("entry" in tool and tool["entry"]["names"][0] in entries):
            tools.append(tool)
    rng.shuffle(tools)
    return tools


def reasoning(rng, actions):
    parts = []
    for action in actions:
        pairs = "; ".join(f"{k} = {v if isinstance(v, str) else dumps(v)}" for k, v in action["arguments"].items())
        parts.append(f"The request matches {action['tool']['name']}. " + (f"Arguments: {pairs}." if pairs else "It needs no arguments."))
    if len(actions) > 1:
        return f"This needs {words.NUMBER_WORDS[len(actions)]} calls.\n" + "\n".join(parts)
    return parts[0]


def result(rng, pools):
    """(tool response text, sentence that reports it)."""
    if rng.random() < 0.08:
        reason = rng.choice(["not found", "permission denied", "timeout", "invalid " + rng.choice(pools.nouns), "rate limit"])
        return dumps({"error": reason}), f"The call failed: {reason}."
    if rng.random() < 0.12:
        text = values.phrase(rng, pools)
        return text, f"The result is: {text}"
    fields = {}
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        key = rng.choice(pools.nouns) if rng.random() < 0.6 else rng.choice(
            ["temperature", "status", "id", "count", "price", "time", "total", "message", "name", "result"])
        fields[key] = rng.choice([values.integer(rng), values.number(rng), values.string(rng, pools, key)])
    said = [f"the {plain(k)} is {v if isinstance(v, str) else dumps(v)}" for k, v in fields.items()]
    text = said[0] if len(said) == 1 else ", ".join(said[:-1]) + " and " + said[-1]
    return dumps(fields), text[0].upper() + text[1:] + "."


def call_message(actions, thinking, rng):
    message = {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": a["tool"]["name"], "arguments": a["arguments"]}} for a in actions]}
    if thinking:
        message["reasoning"] = reasoning(rng, actions)
    return message


def tool_chat(rng, pools, kind=None, thinking=None):
    """One conversation: {messages, tools, thinking, calls, kind}. calls is what the first assistant turn must make."""
    kind = kind or rng.choices(["single", "parallel", "none", "talk"], [54, 28, 11, 7])[0]
    thinking = rng.random() < 0.35 if thinking is None else thinking
    messages, actions = [], []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(words.SYSTEMS)})
    if kind == "parallel":
        first = make_tool(rng, pools)
        second = first if rng.random() < 0.4 else make_tool(rng, pools)
        if "entry" in first and first["entry"] is second.get("entry"):
            second = first                       # never two names for one everyday tool
        count = 3 if rng.random() < 0.15 else 2
        chosen = [first, second, rng.choice([first, second])][:count]
        actions = [make_action(rng, pools, t) for t in chosen]
        joint = natural_pair(rng, pools, first) if "entry" in first and rng.random() < 0.5 else None
        if joint:
            actions, chosen = joint, [first]
        glue = rng.choice([" Also, ", " Then ", " And ", "\n", " After that: ", " ", " Next, "])
        request = actions[0]["request"].rstrip()
        for action in actions[1:] if not joint else []:
            if request[-1] not in ".?!":
                request += "."
            request += glue + action["request"]
        wanted = list({t["name"]: t for t in chosen}.values())
    else:
        wanted = [make_tool(rng, pools)]
        action = make_action(rng, pools, wanted[0])
        request = action["request"]
        actions = [action] if kind == "single" else []
    tools = toolbox(rng, pools, wanted, rng.choices(range(1, 7), [20, 22, 20, 16, 12, 10])[0])
    if kind == "talk":
        talk(rng, messages, thinking)
    elif kind == "none":
        others = toolbox(rng, pools, [], rng.randint(1, 4))
        tools = [t for t in others if t["phrase"] != wanted[0]["phrase"]]
        tools = tools or [invented_tool(rng, pools)]
    if kind != "talk":
        messages.append({"role": "user", "content": request})
    if kind == "none":
        reply = {"role": "assistant", "content": "None of the available tools can do that."}
        if thinking:
            reply["reasoning"] = "No tool matches this request."
        messages.append(reply)
    elif kind != "talk":
        messages.append(call_message(actions, thinking, rng))
        if rng.random() < 0.55:
            finish(rng, pools, messages, actions, thinking)
            if rng.random() < 0.4:
                follow_up(rng, pools, messages, tools, thinking)
    return dict(messages=messages, tools=[t["json"] for t in tools], thinking=thinking, kind=kind,
                calls=[(a["tool"]["name"], a["arguments"]) for a in actions])


def talk(rng, messages, thinking):
    """A question that needs none of the tools, answered directly."""
    if rng.random() < 0.25:
        (ask, answer), steps = rng.choice(tasks.GREETINGS), "The user is friendly. I answer politely."
    else:
        ask, steps, answer = rng.choice(tasks.QUESTIONS)(rng)
    reply = {"role": "assistant", "content": answer}
    if thinking:
        reply["reasoning"] = steps
    messages += [{"role": "user", "content": ask}, reply]


def follow_up(rng, pools, messages, tools, thinking):
    """A second request in the same conversation: another call, or small talk."""
    if rng.random() < 0.25:
        return talk(rng, messages, thinking)
    action = make_action(rng, pools, rng.choice(tools))
    messages.append({"role": "user", "content": action["request"]})
    messages.append(call_message([action], thinking, rng))
    if rng.random() < 0.5:
        finish(rng, pools, messages, [action], thinking)


def finish(rng, pools, messages, actions, thinking):
    """Appends tool responses and the answer that reports them."""
    said = []
    for _ in actions:
        response, sentence = result(rng, pools)
        messages.append({"role": "tool", "content": response})
        said.append(sentence)
    answer = said[0]
    if len(said) > 1:
        answer = "\n".join(f"{i + 1}. {s}" for i, s in enumerate(said))
    reply = {"role": "assistant", "content": answer}
    if thinking:
        reply["reasoning"] = f"The tool{'s' if len(said) > 1 else ''} answered. I report the result{'s' if len(said) > 1 else ''}."
    messages.append(reply)
