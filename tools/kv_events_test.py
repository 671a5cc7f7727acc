#!/usr/bin/python3
"""K/V events of a server over ZeroMQ, as routers hear them: frames, widths, parents, gaps, replay, restarts, subscribers
that never read, tiers, an index as llm-d's. usage: kv_events_test.py RIPTIDE [--long]. Nothing leaves loopback. Skipped without python3-zmq and
python3-msgpack, and where riptide was built without libzmq.
"""
import os
import pathlib
import random
import socket
import struct
import subprocess
import sys
import threading
import time

try:
    import msgpack
    import zmq
except ImportError as missing:
    print(f"skipped: K/V events over ZeroMQ: {missing.name} is not installed")
    sys.exit(77)

from test_support import PATIENCE, ROOT, Server, ask, attempt, cost_beside, expect, free_port, get, riptide, told, wait_for

BLOCK, END = 64, b"\xff" * 8
LONG = "--long" in sys.argv[2:]
CANARY = "canarybird"
PAIRS, MOST, MOST_GROWN = 100 if LONG else 12, 0.02 if LONG else 0.1, 64  # MOST_GROWN: MiB
context = zmq.Context()
API, PLAIN, EVENTS, REPLAY = (free_port() for _ in range(4))
TOPIC = f"kv@127.0.0.1:{API}@demo"
WITH_REPLAY = ("--kv-events-replay", f"tcp://127.0.0.1:{REPLAY}")


def serve(*flags, port=API):
    return Server("--device", "cpu", "--threads", "1", "--ctx", "2048", "--quiet", "--alias", "demo", *flags, port=port).ready()


def serve_events(*flags):
    return serve("--kv-events", f"tcp://127.0.0.1:{EVENTS}", *flags)


class Router:
    """What one knows from events alone. Strict: whatever a router would drop is a failure."""

    def __init__(self, asks=True):
        self.asks = asks  # for what it has missed
        self.sock = context.socket(zmq.SUB)
        self.sock.setsockopt(zmq.RECONNECT_IVL, 20)
        self.sock.setsockopt(zmq.SUBSCRIBE, b"kv@")
        self.sock.connect(f"tcp://127.0.0.1:{EVENTS}")
        self.blocks, self.next, self.told, self.removed = {}, 0, 0, 0

    def hear(self, quiet=0.3):
        """Until nothing has come for that long."""
        while self.sock.poll(quiet * 1000):
            frames = self.sock.recv_multipart()
            expect(len(frames) == 3 and frames[0].decode() == TOPIC and len(frames[1]) == 8, f"frames of {frames[:2]}")
            expect(CANARY.encode() not in b"".join(frames), "no word of a prompt in a message")
            number = struct.unpack(">Q", frames[1])[0]
            if number in (0, self.next):
                self.take(number, frames[2])
            elif self.asks:  # it has missed something, or the server is another one
                self.blocks.clear()
                replay(0, self)
        return self

    def take(self, number, payload):
        self.next = number + 1
        batch = msgpack.unpackb(payload)
        expect(isinstance(batch, list) and len(batch) == 3 and isinstance(batch[0], float) and batch[2] == 0,
               f"a batch of three: {batch}")
        expect(abs(batch[0] - time.time()) < 3600, "its time")
        if number == 0:
            expect(self.fields(batch[1][0]) == ["AllBlocksCleared"], "an epoch begins with nothing")
            self.told = 0
        for event in map(self.fields, batch[1]):
            self.told += len(event[1]) if len(event) > 1 else 1
            getattr(self, event[0])(payload, *event[1:])

    @staticmethod
    def fields(event):
        """By their places."""
        expect(isinstance(event, list), f"an event is an array: {event}")
        return event

    @staticmethod
    def widths(payload, hashes):
        for one in hashes:
            expect(b"\xcf" + struct.pack(">Q", one) in payload, f"hash {one} in nine bytes")

    def BlockStored(self, payload, hashes, parent, tokens, block, lora, medium, lora_name, extra):
        self.widths(payload, hashes + ([] if parent is None else [parent]))
        expect((block, lora, lora_name) == (BLOCK, None, None) and len(tokens) == BLOCK * len(hashes), "sizes of an event")
        expect(parent is None or parent in self.blocks, "a parent is known")
        expect(extra is None or (parent is None and extra == [["pepper"]] + [None] * (len(hashes) - 1)), f"extra keys {extra}")
        path = () if parent is None else self.blocks[parent][0]
        for i, one in enumerate(hashes):
            path += tuple(tokens[i * BLOCK:(i + 1) * BLOCK])
            known = self.blocks.setdefault(one, (path, set(), extra is not None))
            expect(known[0] == path and medium not in known[1] and medium in ("GPU", "CPU", "DISK"), "a block is new")
            known[1].add(medium)

    def BlockRemoved(self, payload, hashes, medium):
        self.widths(payload, hashes)
        for one in hashes:
            expect(one in self.blocks and medium in self.blocks[one][1], "what goes was there")
            self.blocks[one][1].discard(medium)
            if not self.blocks[one][1]:
                del self.blocks[one]
        self.removed += len(hashes)

    def AllBlocksCleared(self, payload):
        self.blocks.clear()

    def longest(self, tokens):
        """Tokens of the longest run of whole blocks, as endpoint pickers score them."""
        paths = {path for path, _, salted in self.blocks.values() if not salted}
        run = 0
        while tuple(tokens[:run + BLOCK]) in paths and run + BLOCK <= len(tokens):
            run += BLOCK
        return run


class Named(Router):
    """Reads events of --kv-events-format map, by the names that vLLM's have."""
    NAMES = {"BlockStored": ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys"],
             "BlockRemoved": ["block_hashes", "medium"], "AllBlocksCleared": []}

    @classmethod
    def fields(cls, event):
        names = cls.NAMES[event["type"]]
        expect(set(event) == {"type", *names}, f"names of an event: {list(event)}")
        return [event["type"], *(event[name] for name in names)]


def replay(start, router=None):
    """Numbers that come; the router hears them. Ends with the marker, or fails."""
    numbers = []
    sock = context.socket(zmq.DEALER)
    sock.connect(f"tcp://127.0.0.1:{REPLAY}")
    sock.send_multipart([b"", struct.pack(">Q", start)])
    while True:
        if not sock.poll(PATIENCE * 1000):
            expect(False, f"the replay from {start} ends")
            break
        empty, topic, sequence, payload = sock.recv_multipart()
        if sequence == END:
            expect((empty, topic, payload) == (b"", b"", b""), "the end of a replay")
            break
        expect((empty, topic.decode()) == (b"", TOPIC), "frames of a replay")
        numbers.append(struct.unpack(">Q", sequence)[0])
        if router:
            router.take(numbers[-1], payload)
    sock.close()
    return numbers


def late():
    """Who has heard nothing but a replay from 0."""
    router = Router()
    numbers = replay(0, router)
    expect(numbers == list(range(len(numbers))), f"a replay without gaps: {numbers}")
    router.sock.close()
    return router


words = "the a one two red blue house tree river stone and or but under over near far cold warm old new".split()
rng = random.Random(2026)


def text(count):
    return " ".join(rng.choice(words) for _ in range(count))


def complete(prompt, tokens=4, port=API, **more):
    return ask(port, "/v1/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True} | more)


def agrees(router, prompts, least=0.5):
    """The router's guess for each prompt against what is then found."""
    credit = 0
    for prompt in prompts:
        ids = ask(API, "/v1/completions/render", {"prompt": prompt})[0]["token_ids"]
        guess = router.hear(0.2).longest(ids)
        usage = complete(prompt, 1)["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        expect(cached - BLOCK < guess <= cached + 4096, f"{guess} tokens guessed, {cached} of {len(ids)} found")
        credit += guess > 0
    expect(credit > least * len(prompts), f"most prompts are known: {credit} of {len(prompts)}")


def wire_and_restarts():
    router = Router()
    for start in range(4):
        server = serve_events(*WITH_REPLAY)
        stems = [text(150 + 40 * i) for i in range(4)]
        for stem in stems:
            complete(stem)
        complete(stems[0], cache_salt="pepper")
        prompts = [stem + " " + text(30) for stem in stems] + [stems[1][:len(stems[1]) // 2] + text(40), text(90)]
        wait_for(lambda: router.hear(0.1).longest(ask(API, "/v1/completions/render", {"prompt": stems[3]})[0]["token_ids"]))
        if start == 0:
            agrees(router, prompts)
            expect(any(salted for _, _, salted in router.blocks.values()), "a salted block says so")
        joined = wait_for(lambda: (one := late()).blocks == router.hear().blocks and one)
        expect(joined and router.blocks, f"start {start}: who comes late knows the same")
        expect(replay(joined.next - 1) == [joined.next - 1] and replay(joined.next + 5) == [], "a replay from a number on")
        page = get(API, "/metrics")
        expect(f"riptide_kv_events_total {joined.told}\n" in page,
               f"the metrics count: {[line for line in page.splitlines() if 'kv_event' in line]}")
        server.kill() if start % 2 else server.end()
        router.hear()
        expect(bool(router.blocks) == (start % 2 == 1), "an orderly end says that nothing is there; a kill cannot")
    router.sock.close()


def without_replay():
    """Then who subscribes is told all."""
    server = serve_events()
    expect(server.ask("/server_info")["kv_events"] == {"publisher": "zmq", "endpoint_host": "127.0.0.1", "endpoint_port_base": EVENTS, "topic": TOPIC,
           "block_size": BLOCK, "dp_size": 1}, "a router finds out where to listen")
    first = Router(asks=False)
    complete(text(200))
    expect(wait_for(lambda: first.hear(0.1).blocks), "the first hears")
    began, second = time.monotonic(), Router(asks=False)
    expect(wait_for(lambda: second.hear(0.1).blocks), "and the second what was there before it")
    expect(time.monotonic() - began < 6, f"within 5 s of subscribing, and a poll: {time.monotonic() - began:.1f} s")
    first.hear()
    expect(first.blocks == second.blocks, "both know the same")
    for one in (first, second):
        one.sock.close()
    server.end()


def as_maps():
    """The same, told by name; pages are few, so that some are removed."""
    server = serve_events(*WITH_REPLAY, "--kv-events-format", "map", "--kv-tokens", "2560", "--cache-ram", "0")
    router = Named()
    complete(text(60))
    wait_for(lambda: router.hear(0.1).next)
    stems = [text(150 + 40 * i) for i in range(6)]
    for stem in stems:
        complete(stem)
    complete(stems[5], cache_salt="pepper")
    router.hear()
    expect(router.removed > 0, "some are removed")
    expect(any(salted for _, _, salted in router.blocks.values()), "a salted block says so")
    agrees(router, [stem + " " + text(30) for stem in stems[3:]])
    joined = Named()
    numbers = replay(0, joined)
    expect(numbers == list(range(len(numbers))) and joined.blocks == router.hear().blocks, "a replay says the same")
    for one in (joined, router):
        one.sock.close()
    server.end()


def cbor(item):
    """Canonical CBOR of numbers, lists and None."""
    if item is None:
        return b"\xf6"
    kind, number = (0x80, len(item)) if isinstance(item, list) else (0, item)
    width = next((i for i, most in enumerate((24, 2**8, 2**16, 2**32)) if number < most), 4)
    head = bytes([kind | (number if width == 0 else 23 + width)]) + (number.to_bytes(2**(width - 1), "big") if width else b"")
    return head + (b"".join(map(cbor, item)) if isinstance(item, list) else b"")


def fnv(text):
    number = 0xCBF29CE484222325
    for byte in text:
        number = (number ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return number


class Picker(Router):
    """Keeps an index beside, as llm-d's endpoint picker does: keys of its own over (parent, tokens, extra), FNV-64a of
    canonical CBOR; the server's hashes only say which key is meant. And counts how often each tier has a block."""

    def __init__(self):
        self.keys, self.held, self.gone, self.spilt = {}, {}, {"GPU": 0, "CPU": 0}, 0
        super().__init__()

    def BlockStored(self, payload, hashes, parent, tokens, block, lora, medium, lora_name, extra):
        super().BlockStored(payload, hashes, parent, tokens, block, lora, medium, lora_name, extra)
        key = fnv(b"demo") if parent is None else self.keys[parent]
        for i, one in enumerate(hashes):
            # Where there is no disk, a block comes to host memory from the device, and is told there while it is here.
            expect(medium != "CPU" or self.held.get((one, "GPU"), 0) == 1, "told in host memory before it leaves the device")
            self.spilt += medium == "CPU"
            key = fnv(cbor([key, tokens[i * BLOCK:(i + 1) * BLOCK], [1] if extra and extra[i] else None]))
            self.keys[one] = key
            self.held[one, medium] = self.held.get((one, medium), 0) + 1

    def BlockRemoved(self, payload, hashes, medium):
        super().BlockRemoved(payload, hashes, medium)
        self.gone[medium] += len(hashes)
        for one in hashes:
            self.held[one, medium] -= 1
            expect(self.held[one, medium] == 0, "a block is told once in a tier, and removed once")

    def AllBlocksCleared(self, payload):
        super().AllBlocksCleared(payload)
        self.keys.clear()
        self.held.clear()

    def longest(self, tokens):
        here, key, run = {self.keys[one] for (one, _), count in self.held.items() if count}, fnv(b"demo"), 0
        while run + BLOCK <= len(tokens):
            key = fnv(cbor([key, tokens[run:run + BLOCK], None]))
            if key not in here:
                break
            run += BLOCK
        return run


def an_index_of_its_own():
    """50 prompts, scored by an index as llm-d has it; pages are few, and what goes from the device is in host memory."""
    server = serve_events(*WITH_REPLAY, "--kv-tokens", "2560", "--cache-ram", "6")
    router = Picker()
    complete(text(60))
    wait_for(lambda: router.hear(0.1).next)
    stems = [text(120 + 60 * i) for i in range(8)]
    for stem in stems:
        complete(stem)
    complete(f"{CANARY} {text(150)} {CANARY}")
    prompts = [rng.choice(stems)[:rng.randrange(200, 2000)] + " " + text(rng.randrange(1, 60)) for _ in range(200 if LONG else 50)]
    agrees(router, prompts, 0)
    expect(router.spilt > 0 and min(router.gone.values()) > 0, f"blocks go to host memory, and from there: {router.spilt} {router.gone}")
    expect(wait_for(lambda: late().blocks == router.hear().blocks), "who comes late knows the same")
    expect(CANARY not in get(API, "/metrics"), "no word of a prompt in the metrics")
    router.sock.close()
    server.end()


def what_was_missed():
    """Who has missed messages asks for those from the next on: they come without a gap, up to the marker."""
    server = serve_events(*WITH_REPLAY)
    router = Router()
    complete(text(100))
    wait_for(lambda: router.hear(0.1).blocks)
    for missed in range(1, 6):
        wanted = router.next
        for _ in range(missed):
            complete(text(150))
            time.sleep(0.12)
        while router.sock.poll(300):
            router.sock.recv_multipart()  # lost
        numbers = replay(wanted, router)
        expect(numbers == list(range(wanted, wanted + len(numbers))) and len(numbers) >= missed, f"a replay of what was missed: {wanted} {numbers}")
        expect(late().blocks == router.blocks, "and nothing is missing any more")
    router.sock.close()
    server.end()


def memory(server):
    """MiB."""
    return int(pathlib.Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def stuck(kind, port):
    """A client that takes as little as it can, and never reads that."""
    sock = context.socket(kind)
    for option, value in ((zmq.RCVHWM, 1), (zmq.RCVBUF, 4096), (zmq.LINGER, 0)):
        sock.setsockopt(option, value)
    if kind == zmq.SUB:
        sock.setsockopt(zmq.SUBSCRIBE, b"")
    sock.connect(f"tcp://127.0.0.1:{port}")
    return sock


def decoding(what, alone, beside):
    """Decoding alone, and beside something, in turns."""
    cost, low, high = cost_beside(alone, beside, PAIRS)
    print(f"decoding beside {what}: {100 * cost:+.1f} % (median of {PAIRS} pairs; {100 * low:+.1f} to {100 * high:+.1f})")
    expect((cost if LONG else low) < MOST, f"nobody waits for {what}: {100 * cost:+.1f} %")


def beside_decoding():
    """One who listens, then clients that never read."""
    told, plain = serve_events(*WITH_REPLAY), serve(port=PLAIN)
    for server in (told, plain):
        server.decode()

    def heard():
        router, over = Router(), threading.Event()
        listening = threading.Thread(target=lambda: [router.hear(0.05) for _ in iter(over.is_set, True)])
        listening.start()
        took = told.decode()
        over.set()
        listening.join()
        router.sock.close()
        return took
    decoding("one who listens", told.decode, heard)
    subscriber, asker = stuck(zmq.SUB, EVENTS), stuck(zmq.DEALER, REPLAY)
    before = memory(told) - memory(plain)

    def unread():
        for _ in range(100):
            asker.send_multipart([b"", struct.pack(">Q", 0)], zmq.DONTWAIT)
        complete(text(200), 4)
        return told.decode()

    def without():
        complete(text(200), 4, PLAIN)
        return plain.decode()
    decoding("clients that never read", without, unread)
    grown = memory(told) - memory(plain) - before
    expect(grown < MOST_GROWN, f"nor is kept what they do not read: {grown:.1f} MiB")
    again = text(200)
    complete(again)
    expect(complete(again)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, "what was told is there")
    for one in (subscriber, asker, told, plain):
        one.close() if isinstance(one, zmq.Socket) else one.end()


def refused(*flags, says):
    done = subprocess.run([str(riptide), "serve", "--device", "cpu", *flags], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=PATIENCE)
    expect(done.returncode != 0 and says in done.stderr, f"{flags}: {done.stderr}")
    return done.stderr


def refusals():
    where = ("--kv-events", f"tcp://127.0.0.1:{EVENTS}")
    refused("--kv-events-topic", "kv@a@b", says="need --kv-events")
    refused("--kv-events-format", "map", says="need --kv-events")
    refused(*where, "--models", str(ROOT / "models/demo"), says="leave out --models")
    refused(*where, "--alias", "a@b", "--port", "0", says="--kv-events-topic")
    refused("--kv-events", "5557", "--port", "0", says="expected tcp://ADDRESS:PORT")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused("--kv-events", f"tcp://127.0.0.1:{taken.getsockname()[1]}", "--port", "0", says="Address already in use")


def main():
    probe = subprocess.run([str(riptide), "serve", "--device", "cpu", "--port", "0", "--kv-events", "x"],
                           capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE)
    if "built without libzmq" in probe.stderr:
        print("skipped: K/V events over ZeroMQ: riptide was built without libzmq")
        return 77
    attempt(refusals, wire_and_restarts, without_replay, what_was_missed, as_maps, an_index_of_its_own, beside_decoding)
    return told("K/V events")


if __name__ == "__main__":
    sys.exit(main())
