"""A fleet of replicas as events in time, for fleet_sim.py: what a prompt costs, what each replica's cache holds, who
routes where. No clock, no network, no GPU: a run is a function of its costs, its load, its rule, its link and its seed.
"""
import array
import bisect
import collections
import heapq
import itertools
import math
import random
import typing

RULES = ("random", "round-robin", "least-loaded", "hash", "hash-weights", "prefix")
GIB = 2**30


class Costs:
    """What things cost, from figures as fleet_sim.py lists them with their sources.

    A prompt of p cached and n new tokens takes max(t0, turn) + b n + c ((p + n)^2 - p^2) seconds of the device: t0, b
    and c are the least squares of the relative errors of (tokens, tokens a second) for whole prompts."""

    def __init__(self, facts):
        self.__dict__.update(facts)
        self.t0, self.b, self.c = fitted([(n, n / rate) for n, rate in facts["prefill"]])
        self.fixed = max(self.t0, facts["turn_s"])
        self.capacity, self.host_capacity = facts["kv_gib"] * GIB, facts["host_gib"] * GIB
        self.kept = facts["checkpoint_bytes"] * facts["checkpoints"]
        points = [(count, 1 / (total / count)) for count, total in facts["decode"]]  # seconds a step
        self.token_rate = [0.0] + [1 / interpolated(points, count) for count in range(1, facts["max_running"] + 1)]

    def read(self, cached, new):
        """Device seconds beyond the fixed share."""
        return self.b * new + self.c * new * (2 * cached + new)


def fitted(points):
    """(t0, b, c) of t0 + b n + c n^2, none of them negative."""
    for degree in range(min(len(points), 3), 0, -1):
        powers = {3: (0, 1, 2), 2: (0, 1), 1: (1,)}[degree]
        rows = [[n**power / seconds for power in powers] + [1.0] for n, seconds in points]
        size = len(powers)
        system = [[sum(row[i] * row[j] for row in rows) for j in range(size + 1)] for i in range(size)]
        for i in range(size):
            for k in range(size):
                if k != i:
                    factor = system[k][i] / system[i][i]
                    system[k] = [x - factor * y for x, y in zip(system[k], system[i])]
        found = dict(zip(powers, (system[i][size] / system[i][i] for i in range(size))))
        if all(value >= 0 for value in found.values()):
            return found.get(0, 0.0), found[1], found.get(2, 0.0)
    raise ValueError(f"prefill rates that are no rates: {points}")


def interpolated(points, at):
    """Linear between points, and beyond the last two."""
    if len(points) == 1:
        return points[0][1]
    i = min(max(bisect.bisect_left([x for x, _ in points], at), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    return y0 + (y1 - y0) * (at - x0) / (x1 - x0)


class Turn(typing.NamedTuple):
    """A request. Its prompt is `system` tokens that all conversations of a kind share, `earlier` ones of its conversation
    that some replica has computed, and `new` ones."""
    conversation: int
    kind: int
    system: int
    earlier: int
    new: int
    answer: int


class Agent:
    """Endless conversations of one agent, by its own random numbers: the same whatever the fleet does."""

    def __init__(self, number, shape, seed):
        self.rng, self.shape, self.number, self.talks = random.Random(seed * 1_000_003 + number), shape, number, 0
        self.begin()

    def begin(self):
        self.conversation, self.own = self.number + self.talks * 1_000_000, 0
        self.talks += 1
        self.kind = self.rng.choices(range(len(self.shape.systems)), self.shape.popularity)[0]

    def turn(self):
        """(seconds of pause before it, Turn)."""
        rng, shape = self.rng, self.shape
        new = 1 + int(rng.lognormvariate(math.log(shape.new), shape.new_sigma))
        answer = 1 + int(rng.lognormvariate(math.log(shape.answer), shape.answer_sigma))
        median = shape.human_s if rng.random() < shape.human_share else shape.tool_s
        pause = rng.lognormvariate(math.log(median), shape.pause_sigma)
        system = shape.systems[self.kind]
        if self.own and (rng.random() < 1 / shape.turns or system + self.own + new + answer > shape.longest):
            self.begin()
            system = shape.systems[self.kind]
        new = max(1, min(new, shape.longest - system - answer))
        turn = Turn(self.conversation, self.kind, system, self.own, new, answer)
        self.own += new + answer
        return pause, turn


class Script:
    """An agent whose (pause, Turn)s are given: for checks."""

    def __init__(self, turns):
        self.turns = iter(turns)

    def turn(self):
        return next(self.turns, None)


class Memory:
    """What a replica's cache holds: tokens of each conversation, and system prompts (keys -1 - kind). The least recently
    used goes whole, from the device to host memory, and from there away. `holders`: who holds a conversation, for routers
    that are told."""

    def __init__(self, costs, replica, holders):
        self.costs, self.replica, self.holders = costs, replica, holders
        self.device, self.host = collections.OrderedDict(), collections.OrderedDict()  # key: (tokens, bytes)
        self.used = self.host_used = 0

    def find(self, turn):
        """Tokens of the prompt that are here, and bytes that host memory must give back first."""
        entry = self.device.get(turn.conversation)
        restored = 0
        if entry is None and (entry := self.host.get(turn.conversation)):
            restored = entry[1]
        system = self.device.get(-1 - turn.kind)
        if system is None and (system := self.host.get(-1 - turn.kind)):
            restored += system[1]
        if system is None:
            return 0, 0
        return (entry[0], restored) if entry else (system[0], restored)

    def put(self, key, tokens, size):
        old = self.device.pop(key, None)
        if old:
            self.used -= old[1]
        elif old := self.host.pop(key, None):
            self.host_used -= old[1]
        self.device[key] = (tokens, size)
        self.used += size
        if self.holders is not None and key >= 0:
            self.holders.setdefault(key, set()).add(self.replica)
        while self.used > self.costs.capacity and self.device:
            key, entry = self.device.popitem(last=False)
            self.used -= entry[1]
            self.host[key] = entry
            self.host_used += entry[1]
        while self.host_used > self.costs.host_capacity and self.host:
            key, entry = self.host.popitem(last=False)
            self.host_used -= entry[1]
            if self.holders is not None and key >= 0:
                self.holders[key].discard(self.replica)

    def keep(self, turn, tokens):
        if turn.system:
            self.put(-1 - turn.kind, turn.system, turn.system * self.costs.token_bytes + self.costs.kept)
        else:
            self.put(-1 - turn.kind, 0, 0)
        self.put(turn.conversation, tokens, (tokens - turn.system) * self.costs.token_bytes + self.costs.kept)


class Asked:
    """A request at a replica."""
    __slots__ = ("agent", "turn", "came", "cached", "fetched")

    def __init__(self, agent, turn, came):
        self.agent, self.turn, self.came, self.cached, self.fetched = agent, turn, came, 0, 0


class Replica:
    """One device: prompts one after the other, answers all together, each slower while the other goes on."""

    def __init__(self, number, costs, holders):
        self.number, self.costs, self.memory = number, costs, Memory(costs, number, holders)
        self.queue, self.reading, self.work = collections.deque(), None, 0.0
        self.writing, self.made, self.order = [], 0.0, 0  # heap of (tokens made when it ends, order, request)
        self.then = self.busy = self.pace = self.rate = 0.0
        self.link_free = self.out_free = 0.0
        self.kv_tokens, self.wake = 0, -1
        self.told, self.due = 100, None

    def advance(self, now):
        passed = now - self.then
        self.then = now
        if self.reading:
            self.work -= passed * self.pace
            self.busy += passed
        if self.writing:
            self.made += passed * self.rate

    def next_change(self):
        """Sets the speeds; when a prompt or an answer ends next."""
        answers, when = len(self.writing), math.inf
        if self.reading:
            self.pace = self.costs.prefill_beside if answers else 1.0
            when = self.then + max(self.work, 0.0) / self.pace
        if answers:
            self.rate = self.costs.token_rate[answers] / (self.costs.decode_beside if self.reading else 1.0)
            when = min(when, self.then + max(self.writing[0][0] - self.made, 0.0) / self.rate)
        return when

    def begin(self):
        """Takes the next prompt if there is room for its answer."""
        if self.reading or not self.queue or len(self.writing) >= self.costs.max_running:
            return
        asked = self.reading = self.queue.popleft()
        turn = asked.turn
        prompt = turn.system + turn.earlier + turn.new
        found, restored = self.memory.find(turn)
        asked.cached, asked.fetched = max(found, asked.fetched), max(asked.fetched - found, 0)
        restored += asked.fetched * self.costs.token_bytes  # what was fetched is in host memory
        self.kv_tokens += prompt + turn.answer
        self.work = self.costs.fixed + self.costs.read(asked.cached, prompt - asked.cached) + restored / self.costs.host_bytes_s

    def free_weight(self, now):
        """Per cent, as FreeWeight of server/management.h tells them."""
        taken = max(len(self.writing) / self.costs.max_running, self.kv_tokens * self.costs.token_bytes / max(self.costs.capacity, 1))
        weight = min(max(25 * math.ceil(4 * (1 - taken)), 25), 100)
        if weight == self.told:
            self.due = None
        elif self.due is None:
            self.due = now
        elif now - self.due >= 5:
            self.told, self.due = weight, None
        return self.told


def mixed(x):
    """64 bits of an integer (splitmix64)."""
    x = (x + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return x ^ (x >> 31)


class Ring:
    """A consistent hash: POINTS of each replica on a circle, of which the first `weight` per cent count."""
    POINTS = 200

    def __init__(self, replicas):
        self.points = sorted((mixed(replica << 20 | point), replica, point) for replica in range(replicas) for point in range(self.POINTS))
        self.places = [place for place, _, _ in self.points]
        self.count = [self.POINTS] * replicas

    def weigh(self, replica, per_cent):
        self.count[replica] = self.POINTS * per_cent // 100

    def of(self, key):
        at = bisect.bisect_left(self.places, mixed(~key & 0xFFFFFFFFFFFFFFFF))
        while True:
            _, replica, point = self.points[at % len(self.points)]
            if point < self.count[replica]:
                return replica
            at += 1


class Router:
    """Chooses a replica for each request. What it knows of load is of this instant."""

    def __init__(self, rule, replicas, seed, holders):
        self.rule, self.replicas, self.holders = rule, replicas, holders
        self.rng, self.turns = random.Random(~seed), 0
        self.ring = Ring(len(replicas)) if rule.startswith("hash") else None
        self.loads, self.waiting = [0] * len(replicas), [0] * len(replicas)

    def choose(self, turn):
        if self.ring:
            return self.ring.of(turn.conversation)
        if self.rule == "random":
            return self.rng.randrange(len(self.replicas))
        self.turns = (self.turns + 1) % len(self.replicas)
        if self.rule == "round-robin":
            return self.turns
        return self.least() if self.rule == "least-loaded" else self.best(turn)

    def least(self):
        """The fewest requests; of several, the next."""
        least = min(self.loads)
        try:
            return self.loads.index(least, self.turns)
        except ValueError:
            return self.loads.index(least)

    def best(self, turn):
        """Scores as endpoint pickers add them up, of who holds the conversation and of the least loaded: 3 for the share of
        the prompt that is cached, 2 for the shortest queue, 2 for free K/V."""
        prompt, most, fewest = turn.system + turn.earlier + turn.new, max(self.waiting), min(self.waiting)

        def score(number):
            replica = self.replicas[number]
            used = replica.kv_tokens * replica.costs.token_bytes / max(replica.costs.capacity, 1)
            queue = (most - self.waiting[number]) / (most - fewest) if most > fewest else 1.0
            return 3 * replica.memory.find(turn)[0] / prompt + 2 * queue + 2 * (1 - used)
        return max(itertools.chain(sorted(self.holders.get(turn.conversation, ())), [self.least()]), key=score)


class Store:
    """The tier that all replicas share: how many tokens of a conversation are in it, and of which system prompts. It has
    room for all; each replica's link is used one fetch after the other."""

    def __init__(self, costs, gbit):
        self.costs, self.bytes_s = costs, gbit / 8 * 1e9 * costs.link_efficiency
        self.talks, self.kinds = {}, {}

    def length(self, turn, now):
        old, new, since = self.talks.get(turn.conversation, (0, 0, 0))
        return (new if since <= now else old) or (self.kinds.get(turn.kind, 0))

    def fetch(self, replica, asked, now):
        """When what is missing is there; None if it is not worth it, by the rule of docs/cache.md."""
        turn = asked.turn
        local, shared = replica.memory.find(turn)[0], self.length(turn, now)
        if shared <= local:
            return None
        size = (shared - local) * self.costs.token_bytes + self.costs.checkpoint_bytes
        end = max(now, replica.link_free) + size / self.bytes_s + self.costs.round_trip_s
        reading = self.costs.read(local, shared - local) / (self.costs.prefill_beside if replica.writing else 1.0)
        if end - now > self.costs.fetch_patience * reading:
            return None
        replica.link_free, asked.fetched = end, shared
        return end

    def write(self, replica, turn, new, tokens, now):
        replica.out_free = max(now, replica.out_free) + (new * self.costs.token_bytes + self.costs.checkpoint_bytes) / self.bytes_s
        self.talks[turn.conversation] = (self.length(turn, now), tokens, replica.out_free)


class Fleet:
    """`agents` on `count` replicas, for `seconds` of which the first `warm` are not counted."""
    ARRIVES, FETCHED, CHANGES, WEIGHS = range(4)

    def __init__(self, costs, count, rule, gbit, seed):
        holders = {} if rule == "prefix" else None
        self.costs, self.replicas = costs, [Replica(number, costs, holders) for number in range(count)]
        self.router = Router(rule, self.replicas, seed, holders)
        self.store = Store(costs, gbit) if gbit else None
        self.events, self.order = [], itertools.count()
        self.last, self.kinds = {}, set()  # where a conversation was answered last; system prompts that any had
        self.times, self.prompt, self.found, self.fetched, self.moved, self.again, self.known = array.array("d"), 0, 0, 0, 0, 0, 0

    def push(self, when, kind, what):
        number = next(self.order)
        heapq.heappush(self.events, (when, number, kind, what))
        return number

    def remember(self, histories):
        """Fills the caches with turns that were answered before: the lists of each agent, whose last turns are the latest."""
        for age in range(max(map(len, histories), default=0), 0, -1):
            for turns in histories:
                if len(turns) >= age:
                    turn = turns[-age]
                    where, tokens = self.router.choose(turn), turn.system + turn.earlier + turn.new + turn.answer
                    self.replicas[where].memory.keep(turn, tokens)
                    self.last[turn.conversation] = where
                    self.kinds.add(turn.kind)
                    if self.store:
                        self.store.talks[turn.conversation], self.store.kinds[turn.kind] = (tokens, tokens, 0), turn.system

    def run(self, agents, seconds, warm=0.0):
        self.warm = warm
        for agent in agents:
            self.ask_again(agent, 0.0)
        if self.router.rule == "hash-weights":
            self.push(1.0, self.WEIGHS, None)
        handle = (self.arrives, self.comes, self.changes, self.weighs)
        while self.events and self.events[0][0] <= seconds:
            when, number, kind, what = heapq.heappop(self.events)
            if kind == self.CHANGES and what.wake != number:
                continue
            handle[kind](when, what)
        return self

    def ask_again(self, agent, now):
        if following := agent.turn():
            self.push(now + following[0], self.ARRIVES, (agent, following[1]))

    def arrives(self, now, what):
        asked = Asked(*what, now)
        number = self.router.choose(asked.turn)
        self.router.loads[number] += 1
        self.router.waiting[number] += 1
        replica = self.replicas[number]
        fetched = self.store.fetch(replica, asked, now) if self.store else None
        if fetched is None:
            self.comes(now, (replica, asked))
        else:
            self.push(fetched, self.FETCHED, (replica, asked))

    def comes(self, now, what):
        replica, asked = what
        replica.advance(now)
        replica.queue.append(asked)
        self.go_on(replica)

    def go_on(self, replica):
        replica.begin()
        when = replica.next_change()
        replica.wake = self.push(when, self.CHANGES, replica) if when < math.inf else -1

    def changes(self, now, replica):
        replica.advance(now)
        if replica.reading and replica.work <= 1e-9:
            self.first_token(replica, replica.reading, now)
        while replica.writing and replica.writing[0][0] - replica.made <= 1e-6:
            self.answered(replica, heapq.heappop(replica.writing)[2], now)
        self.go_on(replica)

    def first_token(self, replica, asked, now):
        replica.reading, turn = None, asked.turn
        prompt = turn.system + turn.earlier + turn.new
        before = self.last.get(turn.conversation)
        self.last[turn.conversation] = replica.number
        self.router.waiting[replica.number] -= 1
        if asked.came >= self.warm:
            self.times.append(now - asked.came)
            self.prompt += prompt
            self.known += turn.earlier + (turn.system if turn.kind in self.kinds else 0)
            self.found += asked.cached
            self.fetched += asked.fetched
            self.again += before is not None
            self.moved += before is not None and before != replica.number
        self.kinds.add(turn.kind)
        replica.memory.keep(turn, prompt + turn.answer)
        if turn.answer:
            heapq.heappush(replica.writing, (replica.made + turn.answer, next(self.order), asked))
        else:
            self.answered(replica, asked, now)

    def answered(self, replica, asked, now):
        turn = asked.turn
        tokens = turn.system + turn.earlier + turn.new + turn.answer
        replica.kv_tokens -= tokens
        self.router.loads[replica.number] -= 1
        if self.store:
            self.store.kinds[turn.kind] = turn.system
            self.store.write(replica, turn, tokens - asked.cached, tokens, now)
        self.ask_again(asked.agent, now)

    def weighs(self, now, _):
        for replica in self.replicas:
            self.router.ring.weigh(replica.number, replica.free_weight(now))
        if self.events:
            self.push(now + 1, self.WEIGHS, None)
