"""Threads that fetch every file of a folder over HTTP and compare.

usage: fetch.py PORT FOLDER THREADS ROUNDS
"""

import os
import sys
import threading
import urllib.request

PORT, FOLDER, THREADS, ROUNDS = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
names = [name for name in os.listdir(FOLDER) if name.endswith(".txt")]
failures = []


def work():
    try:
        for _ in range(ROUNDS):
            for name in names:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/{name}", timeout=60) as answer:
                    body = answer.read()
                with open(os.path.join(FOLDER, name), "rb") as file:
                    assert body == file.read(), name
    except BaseException as cause:  # whatever it is, the test has failed
        failures.append(repr(cause))


threads = [threading.Thread(target=work) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
print("all right:", THREADS * ROUNDS * len(names), "files")
