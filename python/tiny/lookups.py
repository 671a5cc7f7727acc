"""Generates long texts with questions about them for the scorer: what is asked, and every place that answers it.

A document is rendered in Laguna's chat format, as the target's prompts are. Texts to hide things in are code, words, logs
and tables; what is hidden are facts among others like them, several values of one key, chains of names, repeated events,
functions, and results of tools.
"""
import data
import tasks
import values
import words
from chat import render

NOUNS = ["code", "number", "key", "password", "color", "address", "version", "owner", "port", "limit", "path", "token"]
EVENTS = ["failed", "was restarted", "was seen", "timed out", "was added", "was refused", "is missing"]
LEVELS = ["INFO", "DEBUG", "WARN", "ERROR"]


def name(rng, pools):
    return rng.choice([values.invented, lambda r: r.choice(pools.nouns), values.surname,
                       lambda r: f"{r.choice(pools.nouns)}_{values.invented(r)}"])(rng)


def names(rng, pools, count):
    out = []
    while len(out) < count:
        new = name(rng, pools)
        if all(new not in old and old not in new for old in out):
            out.append(new)
    return out


def log_line(rng, pools, said=None):
    stamp = f"{values.date(rng)} {values.clock(rng)}:{rng.randint(0, 59):02d}"
    said = said or rng.choice([
        f"{rng.choice(pools.nouns)} {values.invented(rng)} took {rng.randint(1, 9000)} ms",
        f"request {rng.randint(1, 99999)} from {values.invented(rng)}: {rng.choice([200, 200, 301, 404, 500])}",
        f"{rng.choice(pools.verbs)} {rng.choice(pools.adjectives)} {rng.choice(pools.nouns)} done",
        f"{rng.choice(pools.nouns)}={values.integer(rng)} {rng.choice(pools.nouns)}={values.identifier(rng)}"])
    return rng.choice([f"{stamp} {rng.choice(LEVELS)} {said}", f"[{stamp}] {said}", f"{rng.choice(LEVELS)}: {said}"])


def prose_line(rng, pools):
    noun, other = rng.choice(pools.nouns), rng.choice(pools.nouns)
    return rng.choice([
        f"The {rng.choice(pools.adjectives)} {noun} stands beside the {other}.",
        f"{rng.choice(words.FIRST_NAMES)} wants to {rng.choice(pools.verbs)} the {noun}, but the {other} is "
        f"{rng.choice(pools.adjectives)}.",
        f"Every {noun} has a {other}, and nobody in {rng.choice(words.CITIES)} knows why.",
        f"On {rng.choice(words.DAYS)} we {rng.choice(pools.verbs)} {rng.randint(2, 90)} {noun}s and one {other}."])


def code_line(rng, pools):
    a, b = rng.choice(pools.nouns), values.invented(rng)
    return rng.choice([f"    {a} = {b}({values.integer(rng)})", f"def {a}_{b}({rng.choice(pools.nouns)}):", f"    return {a}.{b}",
                       f"    if {a} > {rng.randint(0, 99)}:", f"        self.{a} = {b}", f"    # {rng.choice(pools.verbs)} the {a}",
                       f"import {b}", f"    for {a} in {b}:", ""])


def made_lines(rng, pools, size):
    """Lines of one made kind, about `size` characters."""
    make, lines, total = rng.choice([log_line, prose_line, code_line, None]), [], 0
    if make is None:
        return data.text_filler(rng, pools, size)
    while total < size:
        lines.append(make(rng, pools))
        total += len(lines[-1]) + 1
    return lines


# ---- what is hidden: (marked lines, question, answer); every marked line is evidence --------------------------------------


def facts(rng, pools, _functions):
    """One of several facts of the same form; others share its key or its noun."""
    noun, other = rng.sample(NOUNS, 2)
    keys, form = names(rng, pools, rng.choice([1, 2, 3, 5, 8])), rng.choice(tasks.FACT_FORMS)

    def line(n, key, value):
        return form.format(noun=n, key=key, value=value, quoted=repr(value))

    value = tasks.needle_value(rng)
    loose = [line(noun, key, tasks.needle_value(rng)) for key in keys[1:]]
    if rng.random() < 0.3:
        loose.append(line(other, keys[0], tasks.needle_value(rng)))
    ask = rng.choice([f"What is the {noun} of {keys[0]}?", f"Which {noun} does {keys[0]} have?", f"Tell me the {noun} of {keys[0]}.",
                      f"I need the {noun} for {keys[0]}."])
    return [line(noun, keys[0], value)], loose, ask, f"The {noun} of {keys[0]} is {value}."


def several(rng, pools, _functions):
    """All values of one key."""
    noun, (key, other) = rng.choice(NOUNS), names(rng, pools, 2)
    form, count = rng.choice(tasks.FACT_FORMS[:5]), rng.randint(2, 4)
    found = list(dict.fromkeys(tasks.needle_value(rng) for _ in range(count)))
    lines = [form.format(noun=noun, key=key, value=v, quoted=repr(v)) for v in found]
    loose = [form.format(noun=noun, key=other, value=tasks.needle_value(rng), quoted="") for _ in range(rng.randint(0, 3))]
    ask = rng.choice([f"What are all the {noun}s of {key}?", f"List every {noun} of {key}.", f"Which {noun}s does {key} have?"])
    return lines, loose, ask, f"The {noun}s of {key} are {', '.join(found[:-1])} and {found[-1]}." if len(found) > 1 else (
        f"The {noun} of {key} is {found[0]}.")


def chain(rng, pools, _functions):
    """A name that stands for a name that stands for a value."""
    links, form = names(rng, pools, rng.choice([2, 3, 3, 4])), rng.choice(
        ["{} = {}", "let {} = {}", "Set {} to {}.", "export {}={}"])
    value = str(rng.randint(100, 99999))
    lines = [form.format(a, b) for a, b in zip(links, [value] + links[:-1])]
    loose = [form.format(n, rng.randint(100, 99999)) for n in names(rng, pools, rng.randint(0, 4)) if n not in links]
    ask = rng.choice([f"What is the value of {links[-1]}?", f"What does {links[-1]} stand for?", f"Which number is {links[-1]}?"])
    return lines, loose, ask, f"The value of {links[-1]} is {value}."


def counted(rng, pools, _functions):
    """How often something happened."""
    (key, other), event, count = names(rng, pools, 2), rng.choice(EVENTS), rng.randint(1, 6)

    def line(n):
        return log_line(rng, pools, f"{n} {event}") if rng.random() < 0.5 else f"The {rng.choice(pools.nouns)} {n} {event}."

    ask = rng.choice([f"How many times does the text say that {key} {event}?", f"How often {key} {event}? Count the lines.",
                      f"Count how many lines say {key} {event}."])
    return [line(key) for _ in range(count)], [line(other) for _ in range(rng.randint(0, 4))], ask, f"{count} times."


def function(rng, pools, functions):
    """A function by its name."""
    if functions and rng.random() < 0.5:
        called, _, source = rng.choice(functions)
        ask = rng.choice([f"Show me the function {called}.", f"What is the body of {called}?",
                          f"Write out {called} as it stands in the file."])
        return [source], [], ask, f"```python\n{source}\n```"
    called, value = f"{rng.choice(pools.verbs)}_{rng.choice(pools.nouns)}_{values.invented(rng)}", str(rng.randint(100, 99999))
    body = [f"def {called}({rng.choice(pools.nouns)}):",
            f'    """{rng.choice(pools.verbs).capitalize()} the {rng.choice(pools.nouns)}."""',
            f"    return {value}"]
    ask = rng.choice([f"What does the function {called} return?", f"Which number does {called} return?",
                      f"What comes back from {called}?"])
    other = f"def {name(rng, pools)}():\n    return {rng.randint(100, 99999)}"
    return ["\n".join(body)], [other], ask, f"{called} returns {value}."


HIDDEN = [facts, facts, facts, several, chain, counted, function, function]


def only(text, line):
    """(begin, end) of a line (or lines) that the text has exactly once, or None."""
    at = text.find("\n" + line + "\n")
    return None if at < 0 or text.find("\n" + line + "\n", at + 1) >= 0 else (at + 1, at + 1 + len(line))


def put(rng, lines, entries):
    """Inserts entries at random places."""
    for entry in entries:
        lines.insert(rng.randrange(len(lines) + 1), entry)


def messages_of(rng, pools, lines, asks):
    """The conversation: the text in the user's message or in tools' results, then questions and answers."""
    out = [{"role": "system", "content": rng.choice(words.SYSTEMS)}] if rng.random() < 0.4 else []
    first = asks[0][0]
    if rng.random() < 0.7:
        out.append({"role": "user", "content": "\n".join(lines) + "\n\n" + first})
    else:
        out.append({"role": "user", "content": rng.choice(["Please read these files.", "Look at the results.", "Run the tools."])})
        count = rng.choice([1, 2, 3, 5])
        cut = sorted(rng.randrange(len(lines) + 1) for _ in range(count - 1))
        for begin, end in zip([0] + cut, cut + [len(lines)]):
            call = {"name": f"{rng.choice(['read', 'fetch', 'run', 'query'])}_{rng.choice(pools.nouns)}",
                    "arguments": {"path": values.path(rng, pools)}}
            out.append({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]})
            out.append({"role": "tool", "content": "\n".join(lines[begin:end])})
        out.append({"role": "user", "content": first})
    for i, (ask, answer) in enumerate(asks):
        if i > 0:
            out.append({"role": "user", "content": ask})
        out.append({"role": "assistant", "content": answer})
    return out


def document(rng, pools, functions, filler, questions=None, kinds=None):
    """A text with questions: {text, asked: [{question, tail, answer, evidence}]}, all as (begin, end) of characters; tail is
    where the prompt of that question ends and the answer begins. filler: lines to hide in."""
    lines, asks, entries, taken = list(filler), [], [], set()
    wanted = questions or rng.choice([1, 1, 2, 3, 4])
    for _ in range(20):
        if len(asks) >= wanted:
            break
        kind = rng.choice(kinds or HIDDEN)
        found, loose, ask, answer = kind(rng, pools, functions)
        if len(set(found)) < len(found) or taken & set(found + loose) or any(f in loose for f in found):
            continue
        taken |= set(found + loose)
        entries += found + loose
        asks.append((ask, answer, found, kind.__name__))
    put(rng, lines, entries)
    text = render(messages_of(rng, pools, lines, [a[:2] for a in asks]))
    out, at = [], 0
    for ask, answer, found, kind in asks:
        begin = text.index(ask + "\n</user>", at)
        tail = text.index("</think>", begin) + len("</think>")
        at = text.index("</assistant>", tail)
        spans = [only(text, line) for line in found]
        if all(span is not None and span[1] < begin for span in spans):
            out.append(dict(question=(begin, begin + len(ask)), tail=tail, answer=(tail, at), evidence=spans, kind=kind))
    return dict(text=text, asked=out)
