"""Random parameter values and the ways in which people write them: the copying that a tool call is made of."""
import words
from chat import dumps

SYLLABLES = [c + v for c in "b c d f g h j k l m n p r s t v w z br dr gr kl pl st tr sh ch th".split() for v in "aeiou"]
ENDINGS = ["", "", "n", "r", "s", "l", "x", "t", "m", "nd", "rk"]
LANGUAGES = "English German French Spanish Italian Portuguese Dutch Polish Swedish Japanese Korean Chinese Arabic Hindi".split()
COUNTRIES = list(words.CAPITALS)
EXTENSIONS = "py txt md json csv log yaml toml html cpp rs js png pdf xml".split()
COLORS = "red green blue yellow orange purple black white pink brown gray".split()


def invented(rng):
    """A word that nobody has seen: the model must copy it piece by piece."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.choice([2, 2, 3]))) + rng.choice(ENDINGS)


def surname(rng):
    return invented(rng).capitalize()


def person(rng):
    first = rng.choice(words.FIRST_NAMES)
    return f"{first} {surname(rng)}" if rng.random() < 0.6 else first


def date(rng):
    return f"{rng.randint(2019, 2031)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def clock(rng):
    return f"{rng.randint(0, 23):02d}:{rng.choice([0, 5, 10, 15, 20, 30, 40, 45, 50]):02d}"


def identifier(rng):
    form = rng.randrange(4)
    if form == 0:
        return f"{''.join(rng.choice('ABCDEFGHJKLMNPQRSTUVWXYZ') for _ in range(rng.randint(1, 3)))}-{rng.randint(10, 99999)}"
    if form == 1:
        return "".join(rng.choice("0123456789abcdef") for _ in range(rng.choice([6, 8])))
    if form == 2:
        return f"{invented(rng)}_{rng.randint(1, 999)}"
    return f"{invented(rng)}-{invented(rng)}"


def email(rng):
    return f"{rng.choice(words.FIRST_NAMES).lower()}@{invented(rng)}.{rng.choice(['com', 'org', 'net', 'io', 'de'])}"


def url(rng, pools):
    return f"https://{invented(rng)}.{rng.choice(['com', 'org', 'dev'])}/{rng.choice(pools.nouns)}"


def path(rng, pools):
    parts = [rng.choice(pools.nouns) if rng.random() < 0.7 else invented(rng) for _ in range(rng.choice([1, 2, 2, 3]))]
    prefix = rng.choice(["", "", "/", "./", "src/", "/home/"])
    return f"{prefix}{'/'.join(parts)}.{rng.choice(EXTENSIONS)}"


def phrase(rng, pools, low=2, high=6):
    bag = pools.nouns + pools.adjectives
    return " ".join(rng.choice(bag) if rng.random() < 0.85 else invented(rng) for _ in range(rng.randint(low, high)))


def city(rng):
    return rng.choice(words.CITIES) if rng.random() < 0.75 else invented(rng).capitalize()


HINTS = (("date", date), ("day", date), ("email", email), ("time", clock), ("city", city), ("location", city),
         ("country", lambda r: r.choice(COUNTRIES)), ("user", person), ("author", person), ("recipient", person),
         ("language", lambda r: r.choice(LANGUAGES)), ("color", lambda r: r.choice(COLORS)), ("id", identifier),
         ("code", identifier))


def string(rng, pools, name=""):
    if rng.random() < 0.8:
        for hint, make in HINTS:
            if name == hint or name.endswith("_" + hint):
                return make(rng)
        if name in ("path", "file", "filename"):
            return path(rng, pools)
        if name == "url":
            return url(rng, pools)
        if name in ("text", "message", "query", "subject", "title", "note", "comment", "description", "reason"):
            return phrase(rng, pools)
    form = rng.randrange(10)
    if form < 3:
        return rng.choice(pools.nouns)
    return [invented(rng), surname(rng), phrase(rng, pools, 2, 3), person(rng), identifier(rng), city(rng),
            path(rng, pools)][form - 3]


def integer(rng):
    return rng.choice([rng.randint(0, 12), rng.randint(1, 99), rng.randint(1, 99), rng.randint(100, 9999),
                       rng.randint(10000, 999999)])


def number(rng):
    if rng.random() < 0.15:
        return -round(rng.random() * 50, 1)
    return rng.choice([round(rng.random() * 100, 1), round(rng.random() * 10, 2), round(rng.random(), 2) or 0.5,
                       round(rng.random() * 1000, 2)])


def array(rng, pools, name=""):
    count = rng.choice([1, 2, 2, 3, 3, 4])
    if name in ("ids", "numbers", "ports", "pages", "years") or rng.random() < 0.2:
        return [rng.randint(1, 9999) for _ in range(count)]
    make = {"emails": email, "cities": city, "recipients": person, "names": person, "users": person}.get(name)
    if make is None:
        make = (lambda r: path(r, pools)) if name in ("files", "paths") else (lambda r: r.choice(pools.nouns))
        if rng.random() < 0.25:
            make = invented
    return list(dict.fromkeys(make(rng) for _ in range(count)))


def draw(rng, pools, parameter):
    """A value for a parameter: {name, type, enum?}."""
    kind = parameter["type"]
    if "enum" in parameter:
        return rng.choice(parameter["enum"])
    if kind == "string":
        return string(rng, pools, parameter["name"])
    if kind == "integer":
        low, high = parameter.get("range", (None, None))
        return integer(rng) if low is None else rng.randint(low, high)
    if kind == "number":
        return number(rng)
    if kind == "boolean":
        return rng.random() < 0.6
    return array(rng, pools, parameter["name"])


def spell(rng, value):
    """How a request writes a value. Strings may be quoted: the quotes do not belong to the argument."""
    if isinstance(value, bool):
        return rng.choice(["true", "yes", "on"]) if value else rng.choice(["false", "no", "off"])
    if isinstance(value, int):
        if 0 <= value <= 12 and rng.random() < 0.1:
            return words.NUMBER_WORDS[value]
        return str(value)
    if isinstance(value, float):
        return dumps(value)
    if isinstance(value, list):
        items = [str(v) for v in value]
        form = rng.randrange(5)
        if form == 0:
            return dumps(value)
        if form == 1 or len(items) == 1:
            return ", ".join(items)
        return ", ".join(items[:-1]) + " and " + items[-1]
    form = rng.random()
    return f'"{value}"' if form < 0.25 else f"'{value}'" if form < 0.33 and "'" not in value else value
