#!/usr/bin/env python3
"""What the command line does at its edges: outputs that take nothing, empty values, folders that are none.
usage: cli_edges_test.py RIPTIDE
"""
import os
import pathlib
import re
import signal
import subprocess
import sys

import cli_test
from cli_test import bad, expect, good, riptide, work


def shell(command):
    """A line of bash in which $R is the program."""
    return subprocess.run(["bash", "-c", command], capture_output=True, timeout=120, stdin=subprocess.DEVNULL,
                          env=os.environ | {"R": str(riptide)})


class Server:
    """riptide serve, until `with` ends; `log`: what it said until it was ready."""

    def __init__(self, *arguments):
        command = [str(riptide), "serve", "--port", "0", "--ctx", "512", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.log = ""
        while not re.search("^ready ", self.log, re.MULTILINE) and (line := self.process.stderr.readline()):
            self.log += line
        found = re.search(r"ready .*?:(\d+)/v1", self.log)
        expect(found is not None, f"riptide serve {arguments} gets ready: {self.log}")
        self.port = int(found[1]) if found else 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.rest = self.process.communicate(timeout=60)[1]
        expect(self.process.returncode == 0, f"the server ends: {self.process.returncode} {self.rest}")


def disk_cache():
    bad(66, "/dev/null: cannot be used as a cache", "serve", "--port", 0, "--cache-dir", "/dev/null")
    bad(66, "cannot be used as a cache", "serve", "--port", 0, "--cache-dir", "/proc/nothing")
    with Server("--cache-dir", work / "cache") as first:
        expect("cache " not in first.log, f"a folder that can be used is not worth a word: {first.log}")
        with Server("--cache-dir", work / "cache") as second:
            expect(re.search("^cache .*another process", second.log, re.MULTILINE), f"a folder in use is said: {second.log}")


if __name__ == "__main__":
    disk_cache()
    print(f"{cli_test.checks} checks at the command line's edges, {len(cli_test.failures)} failed")
    sys.exit(1 if cli_test.failures else 0)
