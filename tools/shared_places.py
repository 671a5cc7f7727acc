"""Through what tools/shared_cache_test.py shares K/V: a real Redis, a server that speaks as S3 does, and a wire that can
be slow or broken. All on loopback.
"""
import hashlib
import hmac
import socket
import socketserver
import subprocess
import threading
import time

from test_support import free_port, wait_for


class Redis:
    """redis-server at a socket in a folder and at a port, and a client of it."""
    def __init__(self, folder, password, host="127.0.0.1", at=(), memory="256mb"):
        self.port, self.folder, self.path, self.password = free_port(), folder, folder / "redis.sock", password
        self.host, self.at, self.memory = host, at, memory
        self.start()

    def start(self):
        self.process = subprocess.Popen([*self.at, "redis-server", "--bind", self.host, "--port", str(self.port), "--unixsocket", str(self.path),
                                         "--requirepass", self.password, "--save", "", "--appendonly", "no", "--dir", str(self.folder),
                                         "--maxmemory", self.memory, "--maxmemory-policy", "allkeys-lru"],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        if not wait_for(self.connected):
            raise RuntimeError("redis-server does not start")

    def connected(self):
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(str(self.path))
            self.file = self.sock.makefile("rb")
            return self.ask("AUTH", self.password) == b"OK"
        except OSError:
            return False

    def ask(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.sock.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        return self.answer()

    def answer(self):
        line = self.file.readline()[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        if kind == b":":
            return int(rest)
        if kind != b"$":
            return rest
        return self.file.read(int(rest) + 2)[:-2] if int(rest) >= 0 else None

    def change(self, how):
        """All values, by a function from what is there."""
        values = {key: self.ask("GET", key) for key in self.ask("KEYS", "rk1:*")}
        for key, value in how(values).items():
            self.ask("SET", key, value, "EX", 1000)

    def kill(self):
        self.process.kill()
        self.process.wait()


def flipped(values):
    return {key: value[:500] + bytes([value[500] ^ 1]) + value[501:] for key, value in values.items()}


def cut(values):
    return {key: value[:-1] for key, value in values.items()}


def exchanged(values):
    by_size = {}
    for key in values:
        by_size.setdefault(len(values[key]), []).append(key)
    return {key: values[other] for keys in by_size.values() for key, other in zip(keys, keys[1:] + keys[:1])}


class Damage:
    """One of these, of the values that it has not made itself: what a server writes over them is damaged, too, when it is
    called again."""
    def __init__(self, how):
        self.how, self.made = how, {}

    def __call__(self, values):
        changed = self.how({key: value for key, value in values.items() if self.made.get(key) != value})
        self.made.update(changed)
        return values | changed


class Wire:
    """To a server on loopback: so many bytes a second, and pieces that arrive later; broken, it carries nothing, and says
    nothing of it."""
    def __init__(self, to):
        self.to, self.rate, self.delay, self.whole = to, None, 0.002, threading.Event()
        self.whole.set()
        self.busy = [threading.Lock(), threading.Lock()]  # there, and back
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            ends = self.listener.accept()[0], socket.create_connection(("127.0.0.1", self.to))
            for way, (source, target) in enumerate((ends, ends[::-1])):
                target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self.carry, args=(source, target, self.busy[way]), daemon=True).start()

    def carry(self, source, target, busy):
        try:
            while piece := source.recv(1 << 18):
                time.sleep(self.delay)
                with busy:
                    self.whole.wait()
                    if self.rate:
                        time.sleep(len(piece) / self.rate)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # who has gone


class S3(socketserver.StreamRequestHandler):
    """Objects by path, for whoever signs with the key (Signature Version 4, as its specification has it)."""
    disable_nagle_algorithm, wbufsize = True, -1
    objects, mood = {}, "well"

    def handle(self):
        while first := self.rfile.readline():
            self.method, self.path, _ = first.decode().split(" ")
            self.headers = {}
            while (line := self.rfile.readline().decode().rstrip()):
                name, value = line.split(":", 1)
                self.headers[name.lower()] = " ".join(value.split())
            if "expect" in self.headers:
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                self.wfile.flush()
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if not self.say(*(self.answer(body) if self.signed(body) else (403,))):
                return

    def signed(self, body):
        fields = dict(part.strip().split("=", 1) for part in self.headers["authorization"].split(" ", 1)[1].split(","))
        names, payload = fields["SignedHeaders"].split(";"), self.headers["x-amz-content-sha256"]
        headers = "".join(f"{name}:{self.headers.get(name, '')}\n" for name in names)
        canonical = "\n".join([self.method, self.path, "", headers, ";".join(names), payload])
        identity, *scope = fields["Credential"].split("/")
        text = "\n".join(["AWS4-HMAC-SHA256", self.headers["x-amz-date"], "/".join(scope), hashlib.sha256(canonical.encode()).hexdigest()])
        key = b"AWS4" + b"a secret/+key"
        for part in scope + [text]:
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        wanted = {"host", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"}
        return (identity == "KEYID" and scope[1:] == ["eu-west-3", "s3", "aws4_request"] and wanted <= set(names)
                and self.headers["x-amz-security-token"] == "a/token+=" and payload == hashlib.sha256(body).hexdigest()
                and hmac.compare_digest(key.hex(), fields["Signature"]))

    def answer(self, body):
        if S3.mood == "fails":
            return (500,)
        if self.method == "PUT":
            S3.objects[self.path] = body
            return (200,)
        if self.method == "DELETE":
            S3.objects.pop(self.path, None)
            return (204,)
        if S3.mood == "slow" and self.method == "GET":
            time.sleep(1)
        found = S3.objects.get(self.path)
        return (404,) if found is None else (200, found)

    def say(self, status, body=b""):
        """False: the connection is to be ended."""
        cuts = S3.mood == "cuts" and self.method == "GET" and len(body) > 1000
        self.wfile.write(b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n" % (status, len(body)))
        if self.method == "GET":
            self.wfile.write(body[:1000] if cuts else body)
        self.wfile.flush()
        return not cuts


class S3Server(socketserver.ThreadingTCPServer):
    daemon_threads, request_queue_size, allow_reuse_address = True, 64, True

    def handle_error(self, request, client_address):  # who has gone
        pass
