"""Threads that set, get, count and delete in memcached, and compare every reply.

Each thread has its own connections.

usage: memcached.py PORT THREADS ROUNDS
"""

import random
import socket
import sys
import threading

PORT, THREADS, ROUNDS = map(int, sys.argv[1:])


class Client:
    """The text protocol, as far as it is needed."""

    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", PORT), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def line(self, text):
        self.socket.sendall(text.encode() + b"\r\n")
        return self.file.readline().rstrip().decode()

    def set(self, key, value):
        self.socket.sendall(b"set %s 0 0 %d\r\n" % (key.encode(), len(value)) + value + b"\r\n")
        answer = self.file.readline()
        assert answer == b"STORED\r\n", answer

    def get(self, keys):
        self.socket.sendall(b"get " + b" ".join(key.encode() for key in keys) + b"\r\n")
        found = {}
        while True:
            line = self.file.readline()
            if line == b"END\r\n":
                return found
            word, key, _, length = line.split()
            assert word == b"VALUE", line
            found[key.decode()] = self.file.read(int(length))
            assert self.file.read(2) == b"\r\n"

    def close(self):
        self.file.close()
        self.socket.close()


def work(number, failures):
    try:
        source = random.Random(number)
        client = Client()
        for round in range(ROUNDS):
            values = {}
            for each in range(4):
                length = source.choice([1, 100, 1400, 9000, 100_000 if round % 20 == 0 else 10])
                values[f"k{number}-{round}-{each}"] = source.randbytes(length)
            for key, value in values.items():
                client.set(key, value)
            found = client.get(values)
            assert found == values, (number, round)
            for key in values:
                answer = client.line(f"delete {key}")
                assert answer == "DELETED", answer
            answer = client.line("incr total 1")
            assert answer.isdigit(), answer
            if round % 50 == 49:
                client.close()
                client = Client()
        client.close()
    except BaseException as cause:  # whatever it is, the test has failed
        failures.append((number, repr(cause)))


def with_library():
    """The same through the library that programs use, if it is there."""
    try:
        from pymemcache.client.base import PooledClient
    except ImportError:
        return "without pymemcache"
    client = PooledClient(("127.0.0.1", PORT), max_pool_size=4, timeout=60)
    for round in range(ROUNDS):
        value = b"%d" % round * (round % 100)
        client.set("library", value, noreply=bool(round % 2))
        assert client.get("library") == value, round
    many = {f"many{each}": b"v" * each for each in range(200)}
    assert client.set_many(many) == []
    assert client.get_many(list(many)) == many
    client.close()
    return "with pymemcache"


first = Client()
first.set("total", b"0")
failures = []
threads = [threading.Thread(target=work, args=(number, failures)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
assert first.get(["total"])["total"].strip() == b"%d" % (THREADS * ROUNDS)
print("all right,", with_library())
