#!/usr/bin/env python3
"""Which routing rule at which size? Plays coding agents on a fleet of replicas, without a GPU: what a prompt, a token and
a byte cost is measured (docs/results/), the fleet is simulated. Says which share of the prompts' tokens is found in a
cache, and when the first token comes.

  fleet_sim.py                                      all rules, 1 to 256 replicas, no shared tier and links of 10 to 100 Gbit/s
  fleet_sim.py --replicas 3 --agents 60 --links 0,10     your fleet; replicas may also be 2,3,8
  fleet_sim.py --rules hash,prefix --set kv_gib=20 --set host_gib=64     smaller GPUs with more host memory
  fleet_sim.py --print-costs > mine.json; fleet_sim.py --costs mine.json     other hardware: change the figures, keep the names
  fleet_sim.py --check                              cases whose answers are known, in a few seconds

Rules: random; round-robin; least-loaded (fewest requests); hash (of the session, consistent: contrib/haproxy.cfg without
agent checks); hash-weights (the same, each replica's share by what is free of it, as --agent-port tells HAProxy); prefix
(what each replica has cached, its queue and its K/V, as endpoint pickers score them by --kv-events).

An agent asks, waits for the whole answer, runs a tool or waits for its human, and asks again with all that was said and
something new: --print-costs lists the distributions, too. A run is a function of its flags: the same seed, the same figures.
"""
import argparse
import json
import math
import pathlib
import random
import signal
import sys
import time
import types

import fleet_model as model

# name: (value, unit, where it was measured; `chosen`: by nobody)
FACTS = {
    "prefill": ([[512, 26605], [4096, 49310], [32768, 40424], [131072, 22674]], "tokens, tok/s of a whole prompt",
                "gpu.md: one H200, Laguna XS.2, Q4_K_M, random weights, K/V f8_e4m3"),
    "turn_s": (0.0178, "s, least of a turn", "engine.md: an agent's last prompt once more, one token to compute"),
    "decode": ([[1, 1023], [4, 1713], [8, 2449], [32, 4569], [128, 7934]], "answers together, tok/s in all", "gpu.md; engine.md, each behind 1,024 tokens"),
    "prefill_beside": (0.382, "of its speed, beside answers", "engine.md: 15,447 of 40,424 tok/s beside eight"),
    "decode_beside": (2.11, "times the time of a token, beside a prompt", "engine.md: P99 beside a prompt of 32,768"),
    "max_running": (32, "answers at a time", "the default of riptide serve on a GPU"),
    "token_bytes": (20480, "bytes of K/V a token", "10 paged layers, 8 heads of 128, K and V, f8_e4m3: cache.md's 1.26 GB for 60,000 with rings"),
    "checkpoint_bytes": (31.4e6, "bytes of a checkpoint's rings", "cache.md: 31 MB"),
    "checkpoints": (2, "checkpoints kept of a conversation", "chosen"),
    "kv_gib": (100, "GiB of K/V on the device", "chosen: an H200's 139 without 18.9 of weights, and room"),
    "host_gib": (4, "GiB of host memory behind it", "the default of --cache-ram"),
    "host_bytes_s": (43e9, "bytes/s from host memory", "cache.md: 29.4 ms for 60,000 tokens"),
    "link_efficiency": (0.9, "of a link's bits that are payload", "chosen"),
    "round_trip_s": (0.001, "s to ask the shared tier", "chosen"),
    "fetch_patience": (1.5, "times the time of reading that a fetch may take", "docs/cache.md"),
}
# Conversations grow from some 9,000 tokens to 60,000 in 30 turns, as in engine.md's measurement of an agent.
LOAD = {
    "systems": ([16000, 13500, 11000, 9000, 7500, 6000, 5000, 4000], "tokens of the system prompts that agents share, with tools"),
    "popularity": ([1.0, 0.5, 0.333, 0.25, 0.2, 0.167, 0.143, 0.125], "how often each is used, 1/rank"),
    "turns": (30, "turns of a conversation, mean; geometric"),
    "new": (900, "tokens that a turn adds, median; log-normal"), "new_sigma": (1.0, "its sigma: mean 1,480"),
    "answer": (180, "tokens of an answer, median; log-normal"), "answer_sigma": (0.8, "its sigma: mean 248"),
    "tool_s": (3, "s between answer and next prompt, median; log-normal"),
    "human_share": (0.15, "of pauses are a human's"), "human_s": (45, "s of those, median"),
    "pause_sigma": (1.2, "sigma of both: mean of all 19 s"),
    "longest": (131072, "tokens of the context; then a new conversation"),
}
TITLES = {"random": "random", "round-robin": "round robin", "least-loaded": "least loaded", "hash": "session hash",
          "hash-weights": "session hash, agent weights", "prefix": "by cached prefix"}


def interrupted(*_):
    raise KeyboardInterrupt


def histories(shape, count, seed):
    """Agents in the midst of conversations, and the turns of these that lie behind."""
    agents, behind = [], []
    for number in range(count):
        agent, turns = model.Agent(number, shape, seed), []
        for _ in range(agent.rng.randrange(2 * shape.turns)):
            _, turn = agent.turn()
            turns = [*turns, turn] if turns and turns[-1].conversation == turn.conversation else [turn]
        agents.append(agent)
        behind.append(turns)
    return agents, behind


def cell(facts, load, replicas, agents, rule, gbit, seconds, warm, seed):
    """One row: shares and percentiles of a fleet."""
    began = time.monotonic()
    fleet = model.Fleet(model.Costs(facts), replicas, rule, gbit, seed)
    playing, behind = histories(types.SimpleNamespace(**load), agents, seed)
    fleet.remember(behind)
    fleet.run(playing, warm + seconds, warm)
    times = sorted(fleet.times)

    def at(share):
        return round(times[min(len(times) - 1, math.ceil(share * len(times)) - 1)], 4) if times else None
    busy = [replica.busy / (warm + seconds) for replica in fleet.replicas]
    return {"replicas": replicas, "agents": agents, "rule": rule, "gbit": gbit, "requests": len(times),
            "hit_share": round(fleet.found / max(fleet.prompt, 1), 4), "fetched_share": round(fleet.fetched / max(fleet.prompt, 1), 4),
            "known_share": round(fleet.known / max(fleet.prompt, 1), 4), "moved_share": round(fleet.moved / max(fleet.again, 1), 4),
            "p50_s": at(0.5), "p95_s": at(0.95), "p99_s": at(0.99), "prefill_busy": round(sum(busy) / replicas, 3),
            "prefill_busiest": round(max(busy), 3), "requests_s": round(len(times) / seconds, 2)}, time.monotonic() - began


def link_name(gbit):
    return f"{gbit:g} Gbit/s" if gbit else "no shared tier"


def seconds_text(value):
    return "-" if value is None else f"{value * 1000:.0f} ms" if value < 0.9995 else f"{value:.1f} s" if value < 99.95 else f"{value:.0f} s"


def table(rows, links):
    """Markdown: a line for each size and rule, a column for each link."""
    found = {(row["replicas"], row["rule"], row["gbit"]): row for row in rows}
    print("| replicas | rule | " + " | ".join(f"{link_name(link)}: hits; first token P50, P95, P99" for link in links) + " |")
    print("|---:|---|" + "---|" * len(links))
    for size, rule in dict.fromkeys((row["replicas"], row["rule"]) for row in rows):
        cells = [found[size, rule, link] for link in links if (size, rule, link) in found]
        print(f"| {size} | {TITLES[rule]} | " + " | ".join(
            f"{100 * row['hit_share']:.1f} %; " + ", ".join(seconds_text(row[key]) for key in ("p50_s", "p95_s", "p99_s")) for row in cells) + " |")


# By rule, in light and in dark: Okabe and Ito's palette, and a grey.
COLOURS = [("#59636e", "#9198a1"), ("#cc79a7", "#cc79a7"), ("#e69f00", "#e69f00"), ("#0072b2", "#56b4e9"), ("#d55e00", "#d55e00"), ("#009e73", "#009e73")]
DASHES = ["", "7 3", "2 3", "", "7 3", ""]


def style():
    """As src/apps/support/svg.cpp has it."""
    light, dark = ("".join(f".r{i}{{stroke:{pair[shade]}}}" for i, pair in enumerate(COLOURS)) for shade in (0, 1))
    dashes = "".join(f"polyline.r{i}{{stroke-dasharray:{dash}}}" for i, dash in enumerate(DASHES) if dash)
    return f"""<style>
svg{{background:#fff;font:12px system-ui,sans-serif}}text{{fill:#1f2328}}line{{stroke:#1f2328}}
text.faint{{fill:#59636e}}line.grid{{stroke:#d8dee4}}.title{{font-size:15px;font-weight:600}}.head{{font-weight:600}}
polyline{{fill:none;stroke-width:2}}path{{stroke-width:6;stroke-linecap:round}}{light}{dashes}
@media(prefers-color-scheme:dark){{svg{{background:#0d1117}}text{{fill:#e6edf3}}line{{stroke:#e6edf3}}
text.faint{{fill:#9198a1}}line.grid{{stroke:#30363d}}{dark}}}
</style>"""


def picture(rows, title):
    """Four plots: hit share and first token P95 by size, without a shared tier and with the second link there is."""
    sizes, links = sorted({row["replicas"] for row in rows}), sorted({row["gbit"] for row in rows})
    links = [links[0], links[min(2, len(links) - 1)]] if len(links) > 1 else links
    rules = [rule for rule in model.RULES if any(row["rule"] == rule for row in rows)]
    width, top, plot_w, plot_h = 760, 110, 280, 170
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top + len(links) * 262}" '
           f'viewBox="0 0 {width} {top + len(links) * 262}" role="img">', f"<title>{title}</title>", style()]

    def text(x, y, words, anchor="", kind=""):
        out.append(f'<text x="{x:.0f}" y="{y:.1f}"' + (f' text-anchor="{anchor}"' if anchor else "") + (f' class="{kind}"' if kind else "") + f">{words}</text>")

    def plot(left, bottom, key, link):
        shown = [row for row in rows if row["gbit"] == link and row[key] is not None]
        values = [row[key] for row in shown]
        low, high = (0, 1) if key == "hit_share" else (math.floor(math.log10(min(values))), math.ceil(math.log10(max(values) * 1.0001)))

        def y(value):
            return bottom - plot_h * ((value if key == "hit_share" else math.log10(value)) - low) / (high - low)

        def x(size):
            return left + plot_w * (sizes.index(size) + 0.5) / len(sizes)
        marks = [0, 0.25, 0.5, 0.75, 1] if key == "hit_share" else [10.0**power for power in range(low, high + 1)]
        for mark in marks:
            out.append(f'<line x1="{left}" y1="{y(mark):.1f}" x2="{left + plot_w}" y2="{y(mark):.1f}" class="grid"/>')
            text(left - 6, y(mark) + 4, f"{100 * mark:.0f} %" if key == "hit_share" else f"{mark:g} s", "end", "faint")
        for size in sizes:
            text(x(size), bottom + 16, size, "middle", "faint")
        for rule in rules:
            line = [(x(row["replicas"]), y(row[key])) for row in sorted(shown, key=lambda row: row["replicas"]) if row["rule"] == rule]
            kind = f"r{model.RULES.index(rule)}"
            out.append(f'<polyline class="{kind}" points="' + " ".join(f"{a:.1f},{b:.1f}" for a, b in line) + '"/>')
            out.append(f'<path class="{kind}" d="' + "".join(f"M{a:.1f} {b:.1f}h0" for a, b in line) + '"/>')  # dots
    text(12, 24, title, kind="title")
    for i, rule in enumerate(rules):
        across, down = 12 + i % 3 * 245, 46 + i // 3 * 20
        out.append(f'<polyline class="r{model.RULES.index(rule)}" points="{across},{down} {across + 34},{down}"/>')
        text(across + 42, down + 4, TITLES[rule])
    for i, link in enumerate(links):
        bottom = top + i * 262 + 24 + plot_h
        text(12, top + i * 262 - 4, f"Prompt tokens found in a cache, {link_name(link)}", kind="head")
        plot(60, bottom, "hit_share", link)
        text(400, top + i * 262 - 4, f"First token, P95, {link_name(link)}", kind="head")
        plot(450, bottom, "p95_s", link)
        text(60 + plot_w / 2, bottom + 34, "replicas", "middle", "faint")
        text(450 + plot_w / 2, bottom + 34, "replicas", "middle", "faint")
    return "\n".join([*out, "</svg>"]) + "\n"


def check():
    """Cases whose answers are known without a simulation."""
    facts = {name: fact[0] for name, fact in FACTS.items()}
    load = {name: fact[0] for name, fact in LOAD.items()}
    shape = types.SimpleNamespace(**load)
    done = []

    def same(what, found, wanted, slack=0.0):
        done.append(what)
        assert abs(found - wanted) <= slack, f"{what}: {found}, expected {wanted} +- {slack}"

    def played(count, rule, agents, gbit=0, seconds=1e9, **more):
        return model.Fleet(model.Costs({**facts, **more}), count, rule, gbit, 1).run(agents, seconds)

    def scripts(number, turns, seed=1, systems=True):
        """Agents with so many turns each, and the tokens of all prompts that were there before."""
        agents, earlier = [], 0
        for i in range(number):
            agent = model.Agent(i, types.SimpleNamespace(**{**load, "turns": 1e9, "longest": 1e9}), seed)
            said = [agent.turn() for _ in range(turns)]
            if not systems:
                said = [(pause, turn._replace(system=0)) for pause, turn in said]
            earlier += sum(turn.earlier + (turn.system if turn.earlier else 0) for _, turn in said)
            agents.append(model.Script(said))
        return agents, earlier

    costs = model.Costs(facts)
    for tokens, rate in facts["prefill"]:
        same(f"a prompt of {tokens} takes what was measured", (costs.t0 + costs.read(0, tokens)) * rate / tokens, 1, 0.02)
    same("a prompt in two parts costs what one does", costs.read(0, 3000) + costs.read(3000, 5000), costs.read(0, 8000), 1e-9)
    agents, earlier = scripts(1, 40)
    same("one agent on one replica finds all earlier tokens", played(1, "random", agents).found, earlier)
    for rule in ("hash", "hash-weights"):
        agents, earlier = scripts(40, 10, systems=False)
        same(f"{rule}: eight replicas find what one does", played(8, rule, agents, kv_gib=1e9).found, earlier)
    for rule in model.RULES:
        agents, _ = scripts(10, 5)
        same(f"{rule}: without memory nothing is found", played(4, rule, agents, kv_gib=0, host_gib=0).found, 0)
    agents, earlier = scripts(3000, 2, systems=False)
    same("random, second turns: one in eight is where the first was", played(8, "random", agents, kv_gib=1e9).moved / 3000, 7 / 8, 0.025)
    agents, earlier = scripts(40, 10, systems=False)
    same("a shared tier on a fast link gives all to whoever asks", played(8, "random", agents, 1e6, kv_gib=1e9, round_trip_s=0).found, earlier)
    agents, earlier = scripts(40, 10, systems=False)
    same("nobody waits for a link that is slower than reading", played(8, "random", agents, 0.01, kv_gib=1e9).fetched, 0)
    ring, sessions = model.Ring(3), range(300_000)
    before = [ring.of(session) for session in sessions]
    ring.weigh(1, 25)
    after = [ring.of(session) for session in sessions]
    moved = sum(old != new for old, new in zip(before, after))
    same("a replica with a quarter of its weight loses the share that it should", moved / len(sessions), 1 / 3 - 1 / 9, 0.04)
    same("and no other loses any", sum(old != new and old != 1 for old, new in zip(before, after)), 0)
    same("sessions spread over three replicas", max(before.count(i) for i in range(3)) / 1e5, 1, 0.12)
    # M/D/1: arrivals of a Poisson process, each D seconds of work; the mean wait is rho D / (2 (1 - rho)).
    for rho in (0.3, 0.6, 0.8):
        rng, now, open_load = random.Random(7), 0.0, []
        for i in range(60_000):
            now += rng.expovariate(rho / 0.1)
            open_load.append(model.Script([(now, model.Turn(i, i, 0, 0, 1000, 0))]))
        fleet = played(1, "random", open_load, prefill=[[1000, 10_000]], turn_s=0, kv_gib=0, host_gib=0)
        wait, wanted = sum(fleet.times) / len(fleet.times) - 0.1, rho * 0.1 / (2 * (1 - rho))
        same(f"M/D/1 at {rho}: the mean wait", wait, wanted, 0.06 * wanted)
    run = [cell(facts, load, 3, 30, "prefix", 10, 60, 10, 5)[0] for _ in range(2)]
    same("the same seed gives the same figures", run[0] == run[1], True)
    drawn = picture([cell(facts, load, size, 10 * size, rule, 0, 20, 5, 1)[0] for size in (1, 2) for rule in ("hash", "random")], "a & b".replace("&", "&amp;"))
    import xml.etree.ElementTree as tree
    same("the picture is XML, a line for each rule in each plot and in the legend", sum(1 for _ in tree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}polyline")), 6)
    assert shape.turns == load["turns"]
    print(f"{len(done)} checks of the simulated fleet, 0 failed")


def numbers(text):
    try:
        return [float(word) if "." in word else int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: expected numbers with commas between them") from None


def known_rules(text):
    if unknown := [rule for rule in text.split(",") if rule not in model.RULES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]}: expected of {','.join(model.RULES)}")
    return text.split(",")


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=numbers, default=[1, 4, 16, 64, 256], metavar="N,N", help="sizes of the fleet (1,4,16,64,256)")
    parser.add_argument("--agents", type=int, metavar="N", help="agents in all; else --per-replica for each replica, 10,000 at most")
    parser.add_argument("--per-replica", type=int, default=40, metavar="N", help="agents for each replica (%(default)s)")
    parser.add_argument("--rules", type=known_rules, default=list(model.RULES), metavar="RULE,RULE", help="routing rules (all)")
    parser.add_argument("--links", type=numbers, default=[0, 10, 25, 100], metavar="GBIT,GBIT",
                        help="of each replica to the shared tier, Gbit/s; 0: no such tier (0,10,25,100)")
    parser.add_argument("--seconds", type=float, metavar="S", help="simulated and counted; else 180 at least, and what gives 20,000 requests, 3,600 at most")
    parser.add_argument("--warm", type=float, default=60, metavar="S", help="simulated before, not counted (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of all that is drawn (%(default)s)")
    parser.add_argument("--costs", type=pathlib.Path, metavar="FILE", help="JSON with other figures; what it leaves out stays")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="one figure; VALUE is JSON (repeatable)")
    parser.add_argument("--print-costs", action="store_true", help="the figures as JSON, with their sources, and end")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all rows there, too")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FILE.svg", help="write a picture there, too")
    parser.add_argument("--check", action="store_true", help="cases whose answers are known; a few seconds")
    options = parser.parse_args()
    if not all(isinstance(size, int) and 1 <= size <= 256 for size in options.replicas):
        parser.error("--replicas: expected whole numbers from 1 to 256")
    if not all(gbit >= 0 for gbit in options.links):
        parser.error("--links: expected Gbit/s, or 0")
    if options.per_replica < 1 or (options.agents is not None and not 1 <= options.agents <= 10_000):
        parser.error("expected 1 to 10,000 agents")
    if options.warm < 0 or (options.seconds is not None and not options.seconds > 0):
        parser.error("expected more than 0 seconds")
    return parser, options


def figures(parser, options):
    """Facts and load, with what --costs and --set say instead."""
    facts, load = ({name: fact[0] for name, fact in table.items()} for table in (FACTS, LOAD))
    said = {}
    try:
        said = json.loads(options.costs.read_text()) if options.costs else {}
        for pair in options.set:
            name, _, value = pair.partition("=")
            said[name] = json.loads(value)
    except (OSError, ValueError) as error:
        parser.error(f"{options.costs or ''} {options.set or ''}: {error}")
    for name, value in said.items():
        home = facts if name in facts else load if name in load else None
        value = value["value"] if isinstance(value, dict) and "value" in value else value
        if home is None:
            parser.error(f"no figure is called {name}: {', '.join([*facts, *load])}")
        if isinstance(value, bool) or not isinstance(value, (list, int, float)) or isinstance(value, list) != isinstance(home[name], list):
            parser.error(f"{name}: expected {'a list' if isinstance(home[name], list) else 'a number'}, as {home[name]}")
        home[name] = value
    try:
        model.Costs(facts)
        histories(types.SimpleNamespace(**load), 20, 1)
    except (ValueError, TypeError, ZeroDivisionError, IndexError) as error:
        parser.error(f"figures that cannot be, {', '.join(said)}: {error}")
    return facts, load


def main():
    parser, options = parsed()
    facts, load = figures(parser, options)
    if options.check:
        return check()
    if options.print_costs:
        print(json.dumps({name: {"value": {**facts, **load}[name], "unit": row[1], **({"source": row[2]} if len(row) > 2 else {})}
                          for name, row in {**FACTS, **LOAD}.items()}, indent=1))
        return None
    plan = [(size, rule, gbit) for size in options.replicas for rule in options.rules for gbit in options.links]
    rows, began, loud = [], time.monotonic(), sys.stderr.isatty()
    for size, rule, gbit in plan:
        agents = options.agents or min(10_000, options.per_replica * size)
        seconds = options.seconds or min(3600, max(180, 10_000 / agents * 40))
        if loud:
            print(f"\r\033[K{len(rows)} of {len(plan)}: {size} replicas, {agents} agents, {TITLES[rule]}, {link_name(gbit)}", end="", file=sys.stderr, flush=True)
        row, took = cell(facts, load, size, agents, rule, gbit, seconds, options.warm, options.seed)
        rows.append(row)
        if not loud and took > 10:
            print(f"{len(rows)} of {len(plan)} done, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if loud:
        print("\r\033[K", end="", file=sys.stderr)
    table(rows, options.links)
    print(f"\nSimulated from measured costs, seed {options.seed}: {sum(row['requests'] for row in rows):,} requests in {time.monotonic() - began:.0f} s")
    if options.json:
        options.json.write_text(json.dumps({"seed": options.seed, "facts": facts, "load": load, "rows": rows}, indent=1) + "\n")
    if options.plot:
        options.plot.write_text(picture(rows, "Coding agents on a fleet of H200s, simulated from measured costs"))
    return None


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupted)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted: nothing is written", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
