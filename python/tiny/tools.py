"""Generates tools and the requests for them: invented and everyday ones, alone or several in one sentence.

An action is one call together with the words that ask for it. Names, parameters and values come from a space too large
to memorise, so the only way to be right is to read the schema and copy.
"""
import re

import natural_tools
import values
import words

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
    """The words to draw from: those of training, or those held out for evaluation; and how often a tool is an everyday one."""

    def __init__(self, extra=(), evaluation=False, natural_share=0.4):
        self.natural_share = natural_share
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
    if verb in words.SYNONYMS and rng.random() < 0.25:
        verb = rng.choice(words.SYNONYMS[verb])
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
             "letter": lambda r: r.choice("abcdefghijklmnoprstuvwxyz"),
             "version": lambda r: f"{r.randint(0, 12)}.{r.randint(0, 20)}.{r.randint(0, 9)}",
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
    return natural_tool(rng, pools) if rng.random() < pools.natural_share else invented_tool(rng, pools)


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
