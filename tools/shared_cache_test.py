#!/usr/bin/env python3
"""Replicas of the demo model that share K/V through Redis, and through a server that speaks as S3 does: a conversation
goes on at another with the words and probabilities that it would have had, whatever the place, or the wire to it, does.
usage: shared_cache_test.py RIPTIDE. Nothing leaves loopback. Without redis-server, or where riptide was built without
hiredis or libcurl, that half is skipped.
"""
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import test_support
from shared_places import Damage, Redis, S3, S3Server, Wire, cut, exchanged, flipped
from test_support import PATIENCE, attempt, expect, free_port, riptide, scratch, skipped, told, wait_for

PASSWORD = "a long/password@home"
work = scratch("shared")
servers, redis = [], None


class Server(test_support.Server):
    """`environment`: beside the usual one."""
    def __init__(self, place=None, secret="secret", **environment):
        super().__init__("--device", "cpu", "--threads", "1", "--ctx", "2048", "--admin", "--deterministic",
                         *(["--shared-cache", place, "--shared-cache-key", work / secret] if place else []),
                         env=os.environ | {"XDG_CACHE_HOME": str(work), "no_proxy": "127.0.0.1"} | environment)
        servers.append(self.ready())

    def count(self, name):
        """`ready`, or what the shared tier counts by this label."""
        name = "ready" if name == "ready" else rf'(?:records|requests)_total{{result="{name}"}}'
        return int(re.search(rf"(?m)^riptide_shared_{name} (\d+)$", self.get("/metrics"))[1])

    def shared(self):
        """All that is counted, for whoever asks why."""
        return re.findall(r'(?m)^riptide_shared_\S*?(\w+"?}? \d+)$', self.get("/metrics"))

    def ask(self, messages):
        """Words with their probabilities, and how many tokens of the prompt were cached."""
        reply = super().ask("/v1/chat/completions", {"messages": messages, "max_tokens": 8, "temperature": 0,
                                                     "logprobs": True, "top_logprobs": 3})
        choice = reply["choices"][0]
        return (choice["message"]["content"], choice["logprobs"]), reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    def forget(self):
        self.get("/flush_cache", {})

    def wait_ready(self):
        return wait_for(lambda: self.count("ready") == 1 or (self.ask([{"role": "user", "content": "Hello"}]) and False))


talks = 0


def held():
    """Records that are there: what servers count of them is as old as their last step."""
    return redis.ask("DBSIZE") if redis else len(S3.objects)


def wait_until_written():
    last = -1
    while (now := held()) != last:
        last = now
        time.sleep(0.1)


class Talk:
    """A conversation of which one server has answered the first turn, and written what it computed for it."""
    def __init__(self, first, writes=True):
        global talks
        talks += 1
        rules = f"Conversation {talks}. " + "Say what you mean, and be kind. " * 80
        self.messages = [{"role": "system", "content": rules}, {"role": "user", "content": "Tell me about tea."}]
        before = held()
        for _ in range(5):  # who has looked there in vain three times, since the machine is busy, does not write either
            expect(not writes or first.wait_ready(), "the place is used by who writes")
            first.forget()
            (text, _), _ = first.ask(self.messages)
            if not writes or wait_for(lambda: held() >= before + 12, 2):
                break
        if writes:
            wait_until_written()
            expect(held() >= before + 12, f"what a server computed is written: {held() - before} records: {first.shared()}")
        self.messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Tell me more."}]
        self.expected, _ = reference.ask(self.messages)

    def goes_on(self, server, what):
        """The tokens of it that were cached."""
        server.forget()
        began = time.monotonic()
        said, cached = server.ask(self.messages)
        expect(said == self.expected, f"{what}: {said[0]!r} is said, and {self.expected[0]!r} without a shared cache")
        self.seconds = time.monotonic() - began
        return cached

    def until(self, server, what, *counts, again=lambda: None):
        """Goes on until one of these is counted, `again` before each time: on a machine that is busy an answer may come
        too late to be waited for, and what was computed instead is written over what was there."""
        def counted():
            return sum(server.count(one) for one in counts)
        before = counted()
        for _ in range(12):
            expect(server.wait_ready(), f"{what}: the place is used")
            again()
            cached = self.goes_on(server, what)
            if counted() > before:
                return cached
        expect(False, f"{what}: nothing is counted as {counts}: {server.log()[-600:]}")
        return 0

    def restored(self, server, what):
        cached = self.until(server, what, "fetched")
        expect(cached > 800, f"{what}: {cached} tokens come from another")


def damage(a, b):
    for how, counts in ((flipped, ["rejected"]), (cut, ["miss"]), (exchanged, ["rejected"])):
        redis.ask("FLUSHALL")
        talk = Talk(a)
        spoil = Damage(how)
        cached = talk.until(b, f"values that are {how.__name__}", *counts, again=lambda: redis.change(spoil))
        expect(cached == 0, f"values that are {how.__name__} give {cached} tokens")
    redis.ask("FLUSHALL")
    Talk(a).until(b, "afterwards", "fetched")


def full(a, b):
    """A server that takes no more: A says so once, and goes on."""
    redis.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    redis.ask("CONFIG", "SET", "maxmemory", "1mb")
    for _ in range(2):
        Talk(a, writes=False).goes_on(b, "a full Redis")
    expect(wait_for(lambda: a.count("error") > 0), "writes that a full Redis refuses are errors")
    expect(wait_for(lambda: "is full and keeps what it has" in a.log()), f"it is said: {a.log()[-600:]}")
    expect(a.log().count("is full and keeps what it has") == 1, "once")
    redis.ask("CONFIG", "SET", "maxmemory", "256mb")
    redis.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    expect(wait_for(lambda: again_written(a)), "it is written to again")


def again_written(server):
    before = held()
    Talk(server, writes=False)
    return wait_for(lambda: held() > before, 0.5)


def paused(a, b):
    """A server that hangs keeps nobody waiting."""
    talk = Talk(a)
    talk.restored(b, "before the pause")
    alone = min(timed(lambda: (reference.forget(), reference.ask(talk.messages))) for _ in range(3))
    late = b.count("late")
    redis.ask("CLIENT", "PAUSE", 4000, "ALL")
    for _ in range(5):
        talk.goes_on(b, "a Redis that hangs")
        expect(talk.seconds < 2 * alone + 1, f"a Redis that hangs: {talk.seconds:.2f} s, and {alone:.2f} s alone")
    expect(b.count("late") > late or b.count("error") > 0, "answers that do not come are counted")
    talk.restored(b, "after the pause")


def killed(a, b):
    """kill -9 while others ask."""
    talk = Talk(a)
    errors = b.count("error")
    killer = threading.Timer(0.05, redis.kill)
    killer.start()
    for _ in range(5):
        talk.goes_on(b, "a Redis that is killed")
    killer.join()
    expect(b.count("error") > errors, "questions to a dead Redis are errors")
    expect(wait_for(lambda: b.log().count("cannot be reached") == 1), f"it is said, once: {b.log()[-600:]}")
    redis.start()
    expect(wait_for(lambda: again_written(a)), "a Redis that is back is written to")
    Talk(a).restored(b, "a Redis that is back")


def far(a):
    """Another replica, behind a wire: it fetches what comes sooner than it is read, and reads what does not."""
    wire = Wire(redis.port)
    far_one = Server(f"redis://127.0.0.1:{wire.port}", REDISCLI_AUTH=PASSWORD)
    talk = Talk(a)
    talk.restored(far_one, "over a quick wire")
    alone = min(timed(lambda: (reference.forget(), reference.ask(talk.messages))) for _ in range(3))
    wire.whole.clear()
    fetched = far_one.count("fetched")
    for _ in range(4):
        talk.goes_on(far_one, "over a broken wire")
        expect(talk.seconds < 2 * alone + 1, f"over a broken wire: {talk.seconds:.2f} s, and {alone:.2f} s alone")
    expect(far_one.count("ready") == 0 and far_one.count("fetched") == fetched, f"over a broken wire it is not asked any more: {far_one.shared()}")
    wire.whole.set()
    talk.restored(far_one, "over a wire that is whole again")
    wire.rate = 2e6  # some 11 MB: 6 s
    fetched = far_one.count("fetched")
    for _ in range(3):
        expect(talk.until(far_one, "over a slow wire", "late", "slower") < 100, "over a slow wire it reads the prompt itself")
        expect(talk.seconds < 4 * alone + 1, f"over a slow wire: {talk.seconds:.2f} s, and {alone:.2f} s alone")
    expect(far_one.count("fetched") == fetched, "over a slow wire nothing is fetched")
    far_one.end()


def timed(what):
    began = time.monotonic()
    what()
    return time.monotonic() - began


def first_lines():
    """What a server says of its place before it is asked anything."""
    one = Server(work / "place")
    expect(f"shared  dir:{work}/place, 256 GiB at most, records sealed with the fleet's key\n" in one.log(), f"a folder: {one.log()}")
    expect("shared  " not in reference.log(), f"no place: {reference.log()}")
    one.end()
    if "built without hiredis" in why_not("redis://"):
        return
    nobody = f"redis://127.0.0.1:{free_port()}"
    one = Server(nobody.replace("//", "//me:hush@"))
    expect(f"shared  {nobody}, records sealed with the fleet's key\n" in one.log(), f"Redis: {one.log()}")
    expect(wait_for(lambda: f"cache   {nobody}: cannot be reached" in one.log()), f"nobody is there: {one.log()}")
    expect("hush" not in one.log(), f"no password is told: {one.log()}")
    one.end()


def with_redis():
    global redis
    if not shutil.which("redis-server"):
        skipped.append("K/V in Redis: redis-server is not installed")
        return
    if "built without hiredis" in why_not("redis://"):
        skipped.append("K/V in Redis: riptide was built without hiredis")
        return
    refusal = why_not("rediss://:hush@127.0.0.1")
    expect("Redis over TLS" in refusal and "hush" not in refusal, f"rediss:// is refused: {refusal}")
    redis = Redis(work, PASSWORD)
    try:
        quoted = PASSWORD.replace("/", "%2F").replace("@", "%40")
        tcp = f"redis://127.0.0.1:{redis.port}"
        a, b = Server(f"redis+unix://:{quoted}@{redis.path}"), Server(tcp, REDISCLI_AUTH=PASSWORD)
        for server in (a, b):
            expect(server.wait_ready(), "a server uses the place")
        talk = Talk(a)
        talk.restored(b, "over Redis")
        stranger = Server(tcp, "other", REDISCLI_AUTH=PASSWORD)
        expect(stranger.wait_ready() and talk.goes_on(stranger, "another fleet") == 0 and stranger.count("hit") == 0, "another fleet finds nothing")
        wrong = Server(f"redis://:hush@127.0.0.1:{redis.port}")
        talk.goes_on(wrong, "a wrong password")
        expect(wait_for(lambda: f"{tcp}: does not take the password" in wrong.log()), f"a wrong password is said: {wrong.log()}")
        talk.goes_on(wrong, "a wrong password")
        expect(wrong.log().count("password") == 1 and "hush" not in wrong.log() and wrong.count("error") > 0, f"once: {wrong.log()}")
        far(a)
        for part in (damage, full, paused, killed):
            part(a, b)
        for server in (a, b, stranger, wrong):
            expect(PASSWORD not in server.log() and quoted not in server.log(), "no log has the password")
            server.end()
    finally:
        redis.kill()
        redis = None


def with_s3():
    if "built without libcurl" in why_not("s3://"):
        skipped.append("K/V in S3: riptide was built without libcurl")
        return
    server = S3Server(("127.0.0.1", 0), S3)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    key = {"AWS_ACCESS_KEY_ID": "KEYID", "AWS_SECRET_ACCESS_KEY": "a secret/+key", "AWS_SESSION_TOKEN": "a/token+="}
    place = "s3://bucket/fleet/kv"
    a = Server(place, AWS_REGION="eu-west-3", AWS_ENDPOINT_URL_S3=endpoint, **key)
    b = Server(f"{place}?region=eu-west-3&endpoint={endpoint}", **key)
    for one in (a, b):
        expect(one.wait_ready(), "a server uses the bucket")
    talk = Talk(a)
    expect(all(re.fullmatch(r"/bucket/fleet/kv/[0-9a-f]{64}", path) for path in S3.objects) and S3.objects, "an object a record")
    talk.restored(b, "over S3")
    for how, counts in ((flipped, ["rejected"]), (cut, ["miss"])):
        S3.objects.clear()
        talk = Talk(a)
        spoil = Damage(how)
        cached = talk.until(b, f"objects that are {how.__name__}", *counts,
                            again=lambda: S3.objects.update(spoil(dict(S3.objects))))
        expect(cached == 0, "and none is used")
    S3.objects.clear()
    talk = Talk(a)
    for mood, counts in (("fails", ["error"]), ("cuts", ["error"]), ("slow", ["late", "error"])):
        S3.mood = mood
        expect(talk.until(b, f"a bucket that {mood}", *counts) == 0, f"a bucket that {mood} gives nothing")
        S3.mood = "well"
    talk.restored(b, "a bucket that is well again")
    wrong = Server(place, AWS_REGION="eu-west-3", AWS_ENDPOINT_URL_S3=endpoint, **(key | {"AWS_SECRET_ACCESS_KEY": "hush"}))
    for _ in range(2):
        talk.goes_on(wrong, "a wrong key")
    expect(wait_for(lambda: wrong.log().count("refuses what is asked (403)") == 1), f"a wrong key is said, once: {wrong.log()}")
    expect(wrong.count("error") > 0 and "hush" not in wrong.log(), "and counted")
    for one in (a, b, wrong):
        one.end()
    server.shutdown()


def why_not(place):
    """What is said of an address that is none."""
    command = [str(riptide), "serve", "--device", "cpu", "--threads", "1", "--port", "0", "--shared-cache", place,
               "--shared-cache-key", str(work / "secret")]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE).stderr


def main():
    global reference
    for name in ("secret", "other"):
        (work / name).write_text(os.urandom(32).hex() + "\n")
    try:
        reference = Server()
        attempt(first_lines, with_redis, with_s3)
        reference.end()
    finally:
        for server in servers:
            server.kill()
    return told("K/V in Redis and S3") or (77 if len(skipped) == 2 else 0)


if __name__ == "__main__":
    sys.exit(main())
