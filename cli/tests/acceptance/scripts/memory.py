"""A client of the store, under `sietch run` or not: each part checks its own replies.

`features` and `many` run to their end. `hold` prints `held`, waits for a line on its input, and asks
once more. `steady` asks until it reads the end of its input. `scribble` overwrites the memory that it
shares with the store, from one child process after the other.
"""

import ctypes
import os
import random
import resource
import select
import socket
import sys
import threading
import time

PORT, PART, PATH = int(sys.argv[1]), sys.argv[2], sys.argv[3]


class Error(Exception):
    pass


class Client:
    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", PORT))
        self.socket.settimeout(60)
        self.file = self.socket.makefile("rb", buffering=1 << 16)

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))

    def receive(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError(line)
        kind, text = line[:1], line[1:-2]
        if kind == b"-":
            return Error(text.decode())
        if kind == b"+":
            return text.decode()
        if kind == b":":
            return int(text)
        if kind == b"$":
            return None if text == b"-1" else self.file.read(int(text) + 2)[:-2]
        assert kind == b"*", line
        return None if text == b"-1" else [self.receive() for _ in range(int(text))]

    def ask(self, *words):
        self.send(*words)
        return self.receive()

    def fields(self):
        line = self.ask("CLIENT", "INFO").decode().strip()
        return dict(field.split("=", 1) for field in line.split(" "))

    def is_closed(self):
        try:
            while self.socket.recv(1 << 20):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
        return True


def check(found, expected):
    assert found == expected, f"{str(found)[:200]} instead of {str(expected)[:200]}"


def wait(what, question):
    for _ in range(3000):
        if question():
            return
        time.sleep(0.01)
    raise AssertionError(f"waited in vain for {what}")


def shown(watcher, word):
    return word in watcher.ask("CLIENT", "LIST").decode()


def addresses():
    client = Client()
    fields = client.fields()
    check(fields["path"], PATH)
    check(fields["addr"], "%s:%d" % client.socket.getsockname()[:2])
    check(fields["laddr"], "127.0.0.1:%d" % PORT)
    check(client.socket.getpeername()[:2], ("127.0.0.1", PORT))


def pipelines():
    """More commands, and more replies, than a ring holds at its largest."""
    client, count, value = Client(), 200_000, b"v" * 100
    def write():
        for first in range(0, count, 1000):
            part = (b"*3\r\n$3\r\nSET\r\n$8\r\nk%07d\r\n$100\r\n%s\r\n*2\r\n$3\r\nGET\r\n$8\r\nk%07d\r\n"
                    % (number, value[:93] + b"%07d" % number, number) for number in range(first, first + 1000))
            client.socket.sendall(b"".join(part))
    writer = threading.Thread(target=write)
    writer.start()
    for number in range(count):
        check(client.receive(), "OK")
        check(client.receive(), value[:93] + b"%07d" % number)
    writer.join()
    check(client.ask("DEL", *(b"k%07d" % number for number in range(count))), count)


def large_values():
    client, dice = Client(), random.Random(7)
    for length in 1, 16 << 10, (16 << 10) + 1, 5_000_000, 40_000_000:
        value = dice.randbytes(length)
        check(client.ask("SET", "large", value), "OK")
        assert client.ask("GET", "large") == value, f"{length} bytes differ"
    # One that arrives in small pieces.
    value = dice.randbytes(3000)
    for byte in b"*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n$3000\r\n" + value + b"\r\n":
        client.socket.sendall(bytes([byte]))
    check(client.receive(), "OK")
    check(client.ask("GET", "large"), value)
    check(client.ask("DEL", "large"), 1)


def sessions():
    one, other = Client(), Client()
    check(one.ask("MULTI"), "OK")
    check([one.ask("INCR", "count") for _ in range(3)], ["QUEUED"] * 3)
    check(other.ask("GET", "count"), None)
    check(one.ask("EXEC"), [1, 2, 3])
    check(one.ask("WATCH", "count"), "OK")
    check(other.ask("INCR", "count"), 4)
    check([one.ask("MULTI"), one.ask("PING"), one.ask("EXEC")], ["OK", "QUEUED", None])
    one.send("BLPOP", "list", 0)
    wait("a blocked client", lambda: shown(other, "cmd=blpop"))
    check(other.ask("RPUSH", "list", "x"), 1)
    check(one.receive(), [b"list", b"x"])
    check(one.ask("SUBSCRIBE", "news"), [b"subscribe", b"news", 1])
    check(other.ask("PUBLISH", "news", "y" * 100_000), 1)
    check(one.receive(), [b"message", b"news", b"y" * 100_000])
    # Closed while it subscribes: the store notices without a message.
    one.file.close()
    one.socket.close()
    wait("the subscriber's end", lambda: other.ask("PUBSUB", "NUMSUB", "news") == [b"news", 0])
    # Closed while it is blocked: it takes no element.
    blocked = Client()
    blocked.send("BLPOP", "list", 0)
    wait("a blocked client", lambda: shown(other, "cmd=blpop"))
    blocked.file.close()
    blocked.socket.close()
    wait("the blocked client's end", lambda: not shown(other, "cmd=blpop"))
    check(other.ask("RPUSH", "list", "z"), 1)
    check(other.ask("DEL", "list", "count"), 2)


def ends():
    """Every way in which one side ends the connection."""
    watcher = Client()
    client = Client()
    client.socket.sendall(b"PING\r\nQUIT\r\nPING\r\n")
    check([client.receive(), client.receive()], ["PONG", "OK"])
    assert client.is_closed()
    half = Client()
    half.send("ECHO", "x" * 1_000_000)
    half.socket.shutdown(socket.SHUT_WR)
    check(half.receive(), b"x" * 1_000_000)
    assert half.is_closed()
    killed = Client()
    check(watcher.ask("CLIENT", "KILL", "ADDR", killed.fields()["addr"]), 1)
    assert killed.is_closed()
    wrong = Client()
    wrong.socket.sendall(b"*1\r\n$-3\r\n")
    assert "Protocol error" in str(wrong.receive())
    assert wrong.is_closed()
    idle = Client()
    check(watcher.ask("CONFIG", "SET", "timeout", 1), "OK")
    assert idle.is_closed()
    watcher = Client()
    check(watcher.ask("CONFIG", "SET", "timeout", 0), "OK")
    process = os.fork()
    if process == 0:
        doomed = Client()
        doomed.ask("CLIENT", "SETNAME", "doomed")
        while True:
            doomed.send("GET", "nothing")
    wait("a client that is killed", lambda: shown(watcher, "name=doomed"))
    os.kill(process, 9)
    os.waitpid(process, 0)
    wait("its end", lambda: not shown(watcher, "name=doomed"))


def limits():
    watcher = Client()
    # Clients that end are removed a moment later.
    wait("the others' end", lambda: watcher.ask("CLIENT", "LIST").count(b"\n") == 1)
    check(watcher.ask("CONFIG", "SET", "maxclients", 1), "OK")
    refused = Client()
    check(str(refused.receive()), "ERR max number of clients reached")
    assert refused.is_closed()
    check(watcher.ask("CONFIG", "SET", "maxclients", 10000), "OK")
    # A client that sends and never reads: its input waits, and the store's memory does not grow.
    check(watcher.ask("SET", "large", b"x" * 1_000_000), "OK")
    deaf = Client()
    check(deaf.ask("CLIENT", "SETNAME", "deaf"), "OK")
    deaf.socket.setblocking(False)
    request, sent, last = b"*2\r\n$3\r\nGET\r\n$5\r\nlarge\r\n" * 1000, 0, time.monotonic()
    while time.monotonic() - last < 0.5:
        try:
            sent += deaf.socket.send(request)
            last = time.monotonic()
        except BlockingIOError:
            time.sleep(0.01)
    assert sent < 64 << 20, f"{sent} bytes were accepted"
    line = next(line for line in watcher.ask("CLIENT", "LIST").decode().splitlines() if "name=deaf" in line)
    output = int(dict(field.split("=", 1) for field in line.split(" "))["omem"])
    assert output < 32 << 20, f"{output} bytes wait"
    # It reads in the end, and gets everything in order.
    deaf.socket.setblocking(True)
    deaf.socket.settimeout(60)
    for _ in range(50):
        check(deaf.receive(), b"x" * 1_000_000)
    deaf.file.close()
    deaf.socket.close()
    wait("its end", lambda: not shown(watcher, "name=deaf"))
    # A subscriber that never reads is ended at its limit.
    check(watcher.ask("CONFIG", "SET", "client-output-buffer-limit", "pubsub 4mb 0 0"), "OK")
    deaf = Client()
    check(deaf.ask("SUBSCRIBE", "news"), [b"subscribe", b"news", 1])
    wait("the limit", lambda: watcher.ask("PUBLISH", "news", b"y" * 1_000_000) == 0)
    check(watcher.ask("DEL", "large"), 1)
    check(watcher.ask("CLIENT", "PAUSE", 300, "ALL"), "OK")
    begin = time.monotonic()
    check(Client().ask("PING"), "PONG")
    assert time.monotonic() - begin > 0.1, "it was not paused"


def features():
    for part in addresses, pipelines, large_values, sessions, ends, limits:
        part()
        print(part.__name__, flush=True)


def many():
    count = int(sys.argv[4])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    clients = [Client() for _ in range(count)]
    for round in range(3):
        for number, client in enumerate(clients):
            client.send("SET", number, round)
            client.send("GET", number)
        for client in clients:
            check([client.receive(), client.receive()], ["OK", b"%d" % round])
    lines = clients[0].ask("CLIENT", "LIST").decode().splitlines()
    check(sum(f" path={PATH}" in line for line in lines), count)
    print("all right", flush=True)


def hold():
    client = Client()
    check(client.fields()["path"], PATH)
    check(client.ask("SET", "held", 1), "OK")
    print("held", flush=True)
    sys.stdin.readline()
    try:
        check(client.ask("INCR", "held"), 2)
        print("answered", flush=True)
    except (ConnectionResetError, EOFError, BrokenPipeError):
        print("reset", flush=True)


def steady():
    client, count, longest = Client(), 0, 0
    check(client.fields()["path"], PATH)
    print("steady", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        begin = time.monotonic()
        check(client.ask("INCR", "steady:" + PATH), count + 1)
        longest = max(longest, time.monotonic() - begin)
        count += 1
    print(f"all right: {count} requests", flush=True)


def shared():
    """The writable memory that is shared with the store: not the private pages, which are smaller."""
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            place, rights, _, _, _, *name = line.split()
            if "memfd:sietch-" in "".join(name) and rights.startswith("rw-s"):
                first, last = (int(word, 16) for word in place.split("-"))
                # What lies behind the first pages is mostly not there yet, and harmless.
                if last - first > 4096:
                    found.append((first, min(last - first, 1 << 16)))
    return found


def scribbler(dice):
    clients = [Client() for _ in range(4)]
    assert shared(), "nothing is shared: the kernel serves"
    for client in clients:
        client.socket.setblocking(False)
    while True:
        for start, length in shared():
            for _ in range(50):
                # Positions and marks are in the first lines.
                for reach in (length, min(length, 0x700)):
                    data = dice.choice([b"\0", b"\xff", dice.randbytes(1)]) * dice.choice([1, 4, 8])
                    ctypes.memmove(start + dice.randrange(reach - 8), data, len(data))
        for client in clients:
            try:
                client.socket.send(b"*3\r\n$3\r\nSET\r\n$8\r\nscribble\r\n$5\r\nvalue\r\n" * 20)
                client.socket.recv(100)
            except OSError:
                pass


def scribble():
    for count in range(int(sys.argv[4])):
        child = os.fork()
        if child == 0:
            # PR_SET_PDEATHSIG: no other process would end it.
            ctypes.CDLL(None).prctl(1, 9)
            scribbler(random.Random(count))
        time.sleep(0.05)
        os.kill(child, 9)
        os.waitpid(child, 0)
    print("scribbled", flush=True)


{"features": features, "many": many, "hold": hold, "steady": steady, "scribble": scribble}[PART]()
