"""Generates the other conversations: short questions with reasoning, list and arithmetic tasks, needles in long texts."""
import values
import words

GREETINGS = [("Hello", "Hello! How can I help you?"), ("Hi", "Hi! What can I do for you?"),
             ("Hello!", "Hello! How can I help you?"), ("Hey there", "Hi! What can I do for you?"), ("Good morning", "Good morning! How can I help you?"),
             ("How are you?", "I am fine, thank you. How can I help you?"), ("Thanks!", "You are welcome."),
             ("Thank you", "You are welcome."), ("Bye", "Goodbye!"), ("Who are you?", "I am a small demonstration model in the "
              "Laguna architecture. I complete Python code, answer short questions and call tools."),
             ("What can you do?", "I complete Python code, answer short questions and call tools."),
             ("What is your name?", "I am a small demonstration model. I have no name of my own."),
             ("Are you a large model?", "No. I am very small, so please check what I say.")]


def addition(rng):
    a, b = rng.randint(0, rng.choice([20, 99, 999])), rng.randint(0, rng.choice([20, 99, 999]))
    steps = f"{a} + {b} = {a + b}."
    if a > 9 and b > 9:
        low_a, low_b = a % 10, b % 10
        steps = f"{a - low_a} + {b - low_b} = {a - low_a + b - low_b}. {low_a} + {low_b} = {low_a + low_b}. Together {a + b}."
    ask = rng.choice([f"What is {a} + {b}?", f"{a} + {b} = ?", f"Add {a} and {b}.", f"What is {a} plus {b}?", f"{a}+{b}",
                      f"Calculate {a} + {b}.", f"What is the sum of {a} and {b}?"])
    return ask, steps, f"{a} + {b} = {a + b}"


def subtraction(rng):
    a, b = sorted((rng.randint(0, rng.choice([20, 99, 999])), rng.randint(0, rng.choice([20, 99, 999]))), reverse=True)
    tens = b - b % 10
    steps = f"{a} - {b} = {a - b}." if b < 10 else f"{a} - {tens} = {a - tens}. {a - tens} - {b % 10} = {a - b}."
    ask = rng.choice([f"What is {a} - {b}?", f"{a} - {b} = ?", f"Subtract {b} from {a}.", f"What is {a} minus {b}?", f"{a}-{b}"])
    return ask, steps, f"{a} - {b} = {a - b}"


def product(rng):
    if rng.random() < 0.6:
        a, b = rng.randint(0, 12), rng.randint(0, 12)
        steps = f"{a} * {b} = {a * b}."
    else:
        a, b = rng.randint(11, 99), rng.randint(2, 9)
        tens = a - a % 10
        steps = f"{tens} * {b} = {tens * b}. {a % 10} * {b} = {a % 10 * b}. {tens * b} + {a % 10 * b} = {a * b}."
    ask = rng.choice([f"What is {a} * {b}?", f"{a} * {b} = ?", f"What is {a} times {b}?", f"Multiply {a} by {b}.", f"{a}*{b}"])
    return ask, steps, f"{a} * {b} = {a * b}"


def story(rng):
    name, item = rng.choice(words.FIRST_NAMES), rng.choice(words.split(words.NOUNS, False)) + "s"
    a, b = rng.randint(3, 60), rng.randint(1, 40)
    if rng.random() < 0.5:
        verb = rng.choice(["buys", "finds", "gets"])
        ask = f"{name} has {a} {item} and {verb} {b} more. How many {item} does {name} have now?"
        return ask, f"{name} starts with {a} and {verb} {b}. {a} + {b} = {a + b}.", f"{name} has {a + b} {item}."
    a, b = max(a, b), min(a, b)
    verb = rng.choice(["sells", "loses", "gives away"])
    ask = f"{name} has {a} {item} and {verb} {b}. How many {item} are left?"
    return ask, f"{name} starts with {a} and {verb} {b}. {a} - {b} = {a - b}.", f"{a - b} {item} are left."


def compare(rng):
    a, b = rng.sample(range(1, rng.choice([100, 10000])), 2)
    word = rng.choice(["larger", "smaller"])
    best = max(a, b) if word == "larger" else min(a, b)
    return f"Which number is {word}, {a} or {b}?", f"I compare {a} and {b}. The {word} one is {best}.", f"{best} is {word}."


def listing(rng):
    items = rng.sample(words.split(words.NOUNS, False), rng.randint(3, 7)) if rng.random() < 0.6 else [
        values.invented(rng) for _ in range(rng.randint(3, 6))]
    items = list(dict.fromkeys(items))
    shown = ", ".join(items)
    form = rng.randrange(6)
    ordinals = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"]
    if form == 0:
        index = rng.randrange(len(items))
        return (f"What is the {ordinals[index]} word of this list: {shown}?",
                f"Number {index + 1} of the list is {items[index]}.", f"The {ordinals[index]} word is {items[index]}.")
    if form == 1:
        return (f"What is the last word of this list: {shown}?", f"The list ends with {items[-1]}.",
                f"The last word is {items[-1]}.")
    if form == 2:
        count = "; ".join(f"{i + 1} {item}" for i, item in enumerate(items))
        return f"How many words are in this list: {shown}?", count + ".", f"There are {len(items)} words."
    if form == 3:
        ordered = sorted(items)
        return f"Sort these words alphabetically: {shown}", f"Sorted by first letter: {', '.join(ordered)}.", ", ".join(ordered)
    if form == 4:
        turned = ", ".join(reversed(items))
        return f"Reverse the order of this list: {shown}", "I start at the end.", turned
    word = rng.choice(items) if rng.random() < 0.5 else values.invented(rng)
    found = word in items
    return (f"Does this list contain {word}? {shown}", f"I look for {word}. It is {'there' if found else 'not there'}.",
            f"Yes, the list contains {word}." if found else f"No, the list does not contain {word}.")


def fact(rng):
    form = rng.randrange(8)
    if form < 2:
        country, capital = rng.choice(sorted(words.CAPITALS.items()))
        ask = rng.choice([f"What is the capital of {country}?", f"Capital of {country}?", f"Name the capital of {country}."])
        return ask, f"The capital of {country} is {capital}.", f"The capital of {country} is {capital}."
    if form == 2:
        country, capital = rng.choice(sorted(words.CAPITALS.items()))
        said = f"{capital} is the capital of {country}."
        return f"Which country has the capital {capital}?", said, said
    if form == 3:
        element, symbol = rng.choice(sorted(words.SYMBOLS.items()))
        said = f"The symbol of {element} is {symbol}."
        return f"What is the chemical symbol of {element}?", said, said
    if form == 4:
        word, opposite = rng.choice(sorted(words.OPPOSITES.items()))
        said = f"The opposite of {word} is {opposite}."
        return f"What is the opposite of {word}?", said, said
    if form == 5:
        cycle, noun = (words.DAYS, "day") if rng.random() < 0.5 else (words.MONTHS, "month")
        i, step = rng.randrange(len(cycle)), rng.choice([1, -1])
        where = "after" if step == 1 else "before"
        other = cycle[(i + step) % len(cycle)]
        return (f"Which {noun} comes {where} {cycle[i]}?", f"The {noun} {where} {cycle[i]} is {other}.",
                f"{other} comes {where} {cycle[i]}.")
    name, does = rng.choice(sorted(words.PYTHON_FACTS.items()))
    ask = rng.choice([f"What does {name}() do in Python?", f"What is the Python function {name} for?",
                      f"Explain {name}() in Python."])
    return ask, f"{name}() {does}.", f"{name}() {does}."


QUESTIONS = [addition, addition, subtraction, product, story, compare, listing, listing, fact, fact]


def question_chat(rng, make=None, thinking=None):
    """One or two short questions: {messages, tools, thinking, answer, kind}; answer is the first reply."""
    thinking = rng.random() < 0.5 if thinking is None else thinking
    messages, first, kind = [], None, None
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": rng.choice(words.SYSTEMS + [""])})
    for _ in range(rng.choice([1, 1, 2]) if make is None else 1):
        if make is None and rng.random() < 0.08:
            ask, answer = rng.choice(GREETINGS)
            steps, name = "The user is friendly. I answer politely.", "greeting"
        else:
            task = make or rng.choice(QUESTIONS)
            (ask, steps, answer), name = task(rng), task.__name__
        messages.append({"role": "user", "content": ask})
        reply = {"role": "assistant", "content": answer}
        if thinking:
            reply["reasoning"] = steps
        messages.append(reply)
        if first is None:
            first, kind = answer, name
    return dict(messages=messages, tools=None, thinking=thinking, answer=first, kind=kind)


FACT_FORMS = ["The secret {noun} of {key} is {value}.", "Remember: the {noun} of {key} is {value}.", "{key}: {noun} {value}",
              "# the {noun} of {key} is {value}", "NOTE the {noun} for {key} is {value}.", "{key}_{noun} = {quoted}"]


def needle_value(rng):
    form = rng.randrange(5)
    if form == 0:
        return str(rng.randint(1000, 999999))
    if form == 1:
        return values.identifier(rng)
    if form == 2:
        return f"{values.invented(rng)} {values.invented(rng)}"
    return values.invented(rng) if form == 3 else rng.choice(words.NOUNS)


def needle_chat(rng, pools, filler, depth=None, facts=None):
    """A long text with facts in it and a question about one: {messages, tools, thinking, answer, kind}.

    filler is a list of lines; the fact that is asked for stands at `depth` (0 begin, 1 end), the others anywhere.
    """
    noun = rng.choice(["code", "number", "key", "password", "color", "address", "version", "owner"])
    count = facts or rng.choice([1, 1, 2, 3, 5])
    keys = []
    while len(keys) < count:
        key = rng.choice([values.invented, lambda r: r.choice(pools.nouns), values.surname])(rng)
        if key not in keys:
            keys.append(key)
    form = rng.choice(FACT_FORMS)
    known = {key: needle_value(rng) for key in keys}
    lines = list(filler)
    asked = keys[0]
    for key in keys:
        where = depth if key == asked and depth is not None else rng.random()
        value = known[key]
        lines.insert(round(where * len(lines)), form.format(noun=noun, key=key, value=value, quoted=repr(value)))
    ask = rng.choice([f"What is the {noun} of {asked}?", f"Which {noun} does {asked} have?", f"Tell me the {noun} of {asked}."])
    text = "\n".join(lines)
    content = f"{text}\n\n{ask}" if rng.random() < 0.8 else f"{ask}\n\n{text}"
    thinking = rng.random() < 0.2
    reply = {"role": "assistant", "content": f"The {noun} of {asked} is {known[asked]}."}
    if thinking:
        reply["reasoning"] = f"I look for {asked} in the text. Its {noun} is {known[asked]}."
    messages = [{"role": "user", "content": content}, reply]
    if rng.random() < 0.5:
        messages.insert(0, {"role": "system", "content": rng.choice(words.SYSTEMS + [""])})
    if count > 1 and rng.random() < 0.5 and depth is None:
        other = keys[1]
        messages.append({"role": "user", "content": f"And the {noun} of {other}?"})
        again = {"role": "assistant", "content": f"The {noun} of {other} is {known[other]}."}
        if thinking:
            again["reasoning"] = f"I look for {other} in the text. Its {noun} is {known[other]}."
        messages.append(again)
    return dict(messages=messages, tools=None, thinking=thinking, answer=reply["content"], value=known[asked], kind="needle")


def function_chat(rng, functions):
    """Instruction to Python function, from (name, first docstring sentence, source) of the code corpus."""
    name, doc, source = rng.choice(functions)
    thing = doc[0].lower() + doc[1:] if len(doc) > 1 and doc[1].islower() else doc
    thing = thing.rstrip(".")
    if rng.random() < 0.15:
        ask = f"What does this function do?\n\n```python\n{source}\n```"
        content, steps = doc, f"The function is called {name}."
    else:
        ask = rng.choice([f"Write a Python function {name}: {thing}.", f"Write a Python function `{name}`. {doc}",
                          f"Implement {name} in Python. {doc}", f"Please write a function called {name}. It should {thing}.",
                          f"Python function {name}, {thing}"])
        content, steps = f"```python\n{source}\n```", f"I write the function {name}."
    thinking = rng.random() < 0.25
    reply = {"role": "assistant", "content": content}
    if thinking:
        reply["reasoning"] = steps
    return dict(messages=[{"role": "user", "content": ask}, reply], tools=None, thinking=thinking, answer=content,
                kind="function")
