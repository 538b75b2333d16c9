"""Threads with a session each that count up a node of ZooKeeper, one at a time by its lock recipe.

usage: locks.py PORT THREADS ROUNDS
"""

import sys
import threading

from kazoo.client import KazooClient

PORT, THREADS, ROUNDS = map(int, sys.argv[1:])


def session():
    client = KazooClient(f"127.0.0.1:{PORT}", timeout=60)
    client.start(timeout=60)
    return client


def count(failures):
    try:
        client = session()
        lock = client.Lock("/lock", threading.current_thread().name)
        for _ in range(ROUNDS):
            with lock:
                # Without the lock another thread would count between these two.
                number, _ = client.get("/counter")
                client.set("/counter", b"%d" % (int(number) + 1))
        client.stop()
    except BaseException as cause:
        failures.append(cause)
        raise


first, failures = session(), []
first.create("/counter", b"0")
# A node of a session that ends goes, and a watch says so.
other, gone = session(), threading.Event()
other.create("/short", ephemeral=True)
assert first.exists("/short", watch=lambda event: gone.set())
other.stop()
assert gone.wait(60)
threads = [threading.Thread(target=count, args=(failures,)) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
assert int(first.get("/counter")[0]) == THREADS * ROUNDS
large = bytes(range(256)) * 3500
first.create("/large", large)
assert first.get("/large")[0] == large
first.stop()
print("all right")
