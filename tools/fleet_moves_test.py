#!/usr/bin/env python3
"""What a conversation of 8,000 tokens waits for its first token when it moves to another replica of the demo model over a
shared folder, and what a folder costs that is dead, slow, full or lies. usage: fleet_moves_test.py RIPTIDE [--long] [--cuda]

Nothing leaves loopback. The law: moved, at most 1.25 times (bytes / the folder's speed, as measured here) + 50 ms; a folder
of no use, at most 5 % more than without one; never a wrong word. What other programs take of the machine only adds, so the
least of several times is compared; --long takes more, and moves conversations of 32,000 tokens as well. With --cuda the
servers compute on a GPU, conversations only move, and the law holds for those of 32,000 tokens, too; on a CPU it is about what
moving adds: their attention alone takes longer. (On a GPU the demo model reads 8,000 tokens in 8 ms, of which no folder can be
asked within 5 %.) A folder is slow by a library that is put before it (open() in it takes 500 ms), which a C compiler makes;
without one that is skipped.
"""
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time

from fleet_faults_test import talk, turn
from fleet_test import Replica
from test_support import attempt, expect, riptide, scratch, servers, skipped, told

LONG, CUDA = ("--long" in sys.argv[2:], "--cuda" in sys.argv[2:])
FEW, MANY = (10, 30) if LONG else (2, 8)
SENTENCES, MANY_SENTENCES = 700, 1200  # of 10 tokens, and of 27 where a token is a letter or two
SLOW = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
typedef int (*Open)(const char*, int, ...);
static int late(const char* name, const char* path, int flags, mode_t mode) {
    const char* folder = getenv("SLOW_FOLDER");
    if (folder && strncmp(path, folder, strlen(folder)) == 0) nanosleep(&(struct timespec){0, 500000000}, 0);
    return ((Open)dlsym(RTLD_NEXT, name))(path, flags, mode);
}
#define FORWARD(name) \
    int name(const char* path, int flags, ...) { \
        va_list rest; va_start(rest, flags); \
        const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        return late(#name, path, flags, mode); \
    }
FORWARD(open)
FORWARD(open64)
"""
secret = scratch("moves")


class Folder:
    """A folder of its own for servers to share."""

    def __init__(self):
        self.path = secret / f"shared{len(list(secret.iterdir()))}"
        self.path.mkdir()

    def server(self, *flags, **more):
        return server("--shared-cache", f"dir:{self.path}", "--shared-cache-key", secret / "key", *flags, **more)

    def records(self):
        return set(self.path.rglob("*.rec"))

    def settled(self):
        """All its records, once no more come."""
        known, since = self.records(), time.monotonic()
        while time.monotonic() - since < 0.5:
            time.sleep(0.05)
            if (now := self.records()) != known:
                known, since = now, time.monotonic()
        return known


def server(*flags, ctx=8192, **more):
    return Replica("--cache-ram", ctx // 32, *flags, ctx=ctx, device="cuda" if CUDA else "cpu", **more)


def conversation(name, sentences=SENTENCES):
    return talk(name, sentences)


def of_long_context():
    """A model with seeded weights that says it was trained on 65,536 tokens."""
    path, key = secret / "long.gguf", b".context_length"
    subprocess.run([riptide, "synth", path, "--shape", "laguna-tiny", "--type", "q8_0", "--seed", "7"], check=True, stdout=subprocess.DEVNULL)
    model = bytearray(path.read_bytes())
    at = model.index(key) + len(key) + 4
    model[at:at + 4] = (65536).to_bytes(4, "little")
    path.write_bytes(model)
    return path


def first_token(one, messages):
    """Seconds to the first token of the next turn, its words, cached and prompt tokens. Nothing is said for good."""
    asked = [*messages, {"role": "user", "content": "And what of coffee?"}]
    began = time.monotonic()
    reply = one.ask("/v1/chat/completions", {"messages": asked, "max_tokens": 1, "temperature": 0})
    took, usage = time.monotonic() - began, reply["usage"]
    return took, reply["choices"][0]["message"]["content"], usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


def read_all(records):
    """Bytes, and seconds to read them, the best of three."""
    def once():
        began = time.monotonic()
        return sum(len(path.read_bytes()) for path in records), time.monotonic() - began
    return min((once() for _ in range(3)), key=lambda pair: pair[1])


def moves(few=FEW, many=MANY, sentences=SENTENCES, flags=(), beyond_home=False, **more):
    """`beyond_home`: the law holds for what moving adds to the turn where the conversation was."""
    folder, took, over, alone, home, shares = Folder(), [], [], [], [], []
    with servers(server(*flags, **more), folder.server(*flags, **more), folder.server(*flags, **more)) as (plain, one, two):
        for each in (one, two):
            turn(each.ask, conversation("before"))  # until then it has not measured how fast it reads
        while len(took) < few or (len(took) < many and min(over) > 0):
            before, messages = folder.settled(), conversation(f"moved {len(took)}", sentences)
            turn(one.ask, messages)
            size, reading = read_all(folder.settled() - before)
            seconds, words, cached, tokens = first_token(two, messages)
            home.append(first_token(one, messages)[0])
            without = first_token(plain, messages)
            expect(words == without[1], "a moved conversation's words")
            took.append(seconds)
            over.append(seconds - 1.25 * reading - 0.05 - (home[-1] if beyond_home else 0))
            alone.append(without[0])
            shares.append(cached / tokens)
            rate = size / reading
    print(f"a conversation of {tokens} tokens moves ({size / 1e6:.0f} MB, the folder reads {rate / 1e9:.2f} GB/s: {1000 * size / rate:.0f} ms): first token after "
          f"{1000 * statistics.median(took):.0f} ms, least {1000 * min(took):.0f}; where it was {1000 * statistics.median(home):.0f}, least {1000 * min(home):.0f}; read anew {1000 * statistics.median(alone):.0f}; "
          f"{100 * min(shares):.1f} % found ({len(took)} times)")
    expect(min(shares) > 0.95, f"what was computed is found: {shares}")
    expect(min(over) <= 0, f"the first token of a moved conversation comes within 1.25 x + 50 ms: {1000 * min(over):.0f} ms more")


def of_no_use(what, folder, two, spoil):
    """First tokens of conversations at `two`, whose folder is of no use, against a server without one."""
    with servers(server(), folder.server(), two) as (plain, one, two):
        turn(two.ask, conversation(f"{what}, before"))
        ratios, with_it, without = [], [], []
        while len(ratios) < FEW or (len(ratios) < MANY and min(with_it) > 1.05 * min(without)):
            messages = conversation(f"{what} {len(ratios)}")
            turn(one.ask, messages)
            spoil(folder)
            order = (two, plain) if len(ratios) % 2 else (plain, two)
            found = {id(each): first_token(each, messages) for each in order}
            expect(found[id(two)][1] == found[id(plain)][1], f"{what}: the words")
            with_it.append(found[id(two)][0])
            without.append(found[id(plain)][0])
            ratios.append(with_it[-1] / without[-1])
    cost = min(with_it) / min(without) - 1
    print(f"a folder that {what}: first token {1000 * statistics.median(with_it):.0f} ms, without the tier {1000 * statistics.median(without):.0f} (medians): "
          f"{100 * (statistics.median(ratios) - 1):+.1f} %; {100 * cost:+.1f} % by the least of {len(ratios)}")
    expect(cost <= 0.05, f"a folder that {what} costs at most 5 %: {100 * cost:+.1f} %")


def lies(folder):
    for path in folder.settled():
        path.write_bytes(os.urandom(path.stat().st_size))


def dead(folder):
    shutil.rmtree(folder.path, ignore_errors=True)


def full():
    folder = Folder()
    if os.getuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "riptide", str(folder.path)], capture_output=True).returncode != 0:
        skipped.append("first tokens beside a full folder: this machine lets nobody mount a file system")
        return
    try:
        with open(folder.path / "filler", "wb", buffering=0) as out:
            try:
                while out.write(bytes(1 << 16)):
                    pass
            except OSError:
                pass
        of_no_use("is full", folder, folder.server(), lambda _: None)
    finally:
        subprocess.run(["umount", "-l", str(folder.path)], check=True)


def slow():
    library = secret / "slow.so"
    compiler = next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if not compiler or subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(library), "-ldl"], input=SLOW.encode()).returncode != 0:
        skipped.append("first tokens beside a slow folder: no C compiler")
        return
    folder = Folder()
    before = {**os.environ, "LD_PRELOAD": str(library), "SLOW_FOLDER": str(folder.path)}
    of_no_use("takes 500 ms for each file", folder, folder.server(env=before), lambda where: where.settled())


def main():
    (secret / "key").write_text(os.urandom(32).hex() + "\n")
    parts = [moves]
    if LONG:
        parts.append(lambda: moves(5, 10, MANY_SENTENCES, (of_long_context(),), beyond_home=not CUDA, ctx=40960))
    if not CUDA:
        parts += [lambda: of_no_use("is gone", (folder := Folder()), folder.server(), dead),
                  lambda: of_no_use("lies", (folder := Folder()), folder.server(), lies), full, slow]
    attempt(*parts)
    return told("conversations that move")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
