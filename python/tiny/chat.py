"""Renders messages in Laguna's chat format of the XS.2 lineage, as models/demo/chat_template.jinja does.

    python3 python/tiny/chat.py CASES.json      # [{case, variables, expected}]: byte equality with recorded renderings
"""
import json
import sys

EOS = "\u3008|EOS|\u3009"
DEFAULT_SYSTEM = ("You are a helpful, conversationally-fluent assistant made by Poolside. You are here to be helpful to users "
                  "through natural language conversations.")
SAMPLE = ("<tool_call>function-name\n<arg_key>argument-key</arg_key>\n<arg_value>value-of-argument-key</arg_value>\n"
          "</tool_call>")
CALL_FORMAT = ("or each function call, return an unescaped XML-like object with function name and arguments within "
               "'<tool_call>' and '</tool_call>' tags, like here:\n")


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def tools_block(tools, thinking):
    lines = "".join(dumps(tool) + "\n" for tool in tools)
    text = ("\n\n### Tools\n\nYou may call functions to assist with the user query.\nAll available function signatures are "
            "listed below:\n<available_tools>\n" + lines + "</available_tools>\n\n")
    if thinking:
        return (text + "Wrap your thinking in '<think>', '</think>' tags, followed by a function call. F" + CALL_FORMAT
                + "<think> your thoughts here </think>\n" + SAMPLE)
    return text + "F" + CALL_FORMAT + SAMPLE


def call_text(name, arguments):
    pairs = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v if isinstance(v, str) else dumps(v)}</arg_value>\n"
                    for k, v in arguments.items())
    return f"<tool_call>{name}\n{pairs}</tool_call>\n"


def assistant_text(message):
    content = message.get("content") or ""
    reasoning = next((message[k] for k in ("reasoning", "reasoning_content") if isinstance(message.get(k), str)), "")
    if "</think>" in content:
        if not reasoning:
            reasoning = content.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
        content = content.split("</think>")[-1].lstrip("\n")
    text = "<assistant>\n" + (f"<think>\n{reasoning.strip()}\n</think>\n" if reasoning else "</think>\n")
    if content.strip():
        text += content.strip() + "\n"
    for call in message.get("tool_calls") or []:
        text += call_text(call["function"]["name"], call["function"]["arguments"])
    return text + "</assistant>\n"


def render(messages, tools=None, thinking=False, generate=False):
    """The prompt text. Content that is not a string renders as nothing, as in the template."""
    system = DEFAULT_SYSTEM
    if messages and messages[0]["role"] == "system":
        system = messages[0]["content"]
    out = [EOS]
    if (system and system.strip()) or tools:
        out.append("<system>\n")
        if system and system.strip():
            out.append("\n" + system.rstrip())
        if tools:
            out.append(tools_block(tools, thinking))
        out.append("\n</system>\n")
    for index, message in enumerate(messages):
        content = message.get("content")
        content = content if isinstance(content, str) else ""
        if message["role"] == "user":
            out.append(f"<user>\n{content}\n</user>\n")
        elif message["role"] == "assistant":
            out.append(assistant_text(dict(message, content=content)))
        elif message["role"] == "tool":
            out.append(f"<tool_response>\n{content}\n</tool_response>\n")
        elif message["role"] == "system" and index > 0:
            out.append(f"<system>\n{content}\n</system>\n")
    if generate:
        out.append("<assistant>\n" + ("<think>" if thinking else "</think>"))
    return "".join(out)


def check(path):
    """Compares render() with recorded cases; returns how many differ."""
    wrong = 0
    with open(path, encoding="utf-8") as file:
        cases = json.load(file)
    for case in cases:
        given = case["variables"]
        got = render(given["messages"], given.get("tools"), given.get("enable_thinking", False),
                     given.get("add_generation_prompt", False))
        if got != case["expected"]:
            wrong += 1
            print(f"{case['case']}:\n got      {got!r}\n expected {case['expected']!r}")
    print(f"{len(cases) - wrong} of {len(cases)} cases equal")
    return wrong


if __name__ == "__main__":
    sys.exit(1 if check(sys.argv[1]) else 0)
