"""Tool-calling conversations: single and parallel calls, results and reports, refusals, small talk beside tools."""
import tasks
import tools
import values
import words
from chat import dumps


def reasoning(rng, actions):
    parts = []
    for action in actions:
        pairs = "; ".join(f"{k} = {v if isinstance(v, str) else dumps(v)}" for k, v in action["arguments"].items())
        needs = f"Arguments: {pairs}." if pairs else "It needs no arguments."
        parts.append(f"The request matches {action['tool']['name']}. {needs}")
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
    said = [f"the {tools.plain(k)} is {v if isinstance(v, str) else dumps(v)}" for k, v in fields.items()]
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
    kind = kind or rng.choices(["single", "parallel", "none", "talk"], [57, 28, 8, 7])[0]
    thinking = rng.random() < 0.35 if thinking is None else thinking
    messages, actions = [], []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(words.SYSTEMS)})
    if kind == "parallel":
        first = tools.make_tool(rng, pools)
        second = first if rng.random() < 0.4 else tools.make_tool(rng, pools)
        if "entry" in first and first["entry"] is second.get("entry"):
            second = first                       # never two names for one everyday tool
        count = 3 if rng.random() < 0.15 else 2
        chosen = [first, second, rng.choice([first, second])][:count]
        actions = [tools.make_action(rng, pools, t) for t in chosen]
        joint = tools.natural_pair(rng, pools, first) if "entry" in first and rng.random() < 0.5 else None
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
        wanted = [tools.make_tool(rng, pools)]
        action = tools.make_action(rng, pools, wanted[0])
        request = action["request"]
        actions = [action] if kind == "single" else []
    offered = tools.toolbox(rng, pools, wanted, rng.choices(range(1, 7), [20, 22, 20, 16, 12, 10])[0])
    if kind == "talk":
        talk(rng, messages, thinking)
    elif kind == "none":
        others = tools.toolbox(rng, pools, [], rng.randint(1, 4))
        offered = [t for t in others if t["phrase"] != wanted[0]["phrase"]]
        offered = offered or [tools.invented_tool(rng, pools)]
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
                follow_up(rng, pools, messages, offered, thinking)
    return dict(messages=messages, tools=[t["json"] for t in offered], thinking=thinking, kind=kind,
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


def follow_up(rng, pools, messages, offered, thinking):
    """A second request in the same conversation: another call, or small talk."""
    if rng.random() < 0.25:
        return talk(rng, messages, thinking)
    action = tools.make_action(rng, pools, rng.choice(offered))
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
        plural = "s" if len(said) > 1 else ""
        reply["reasoning"] = f"The tool{plural} answered. I report the result{plural}."
    messages.append(reply)
