"""Locks and unlocks by ZooKeeper's recipe for some seconds, and prints a report as JSON.

usage: lock.py HOST:PORT SECONDS
"""

import json
import sys
import time

from kazoo.client import KazooClient

# Locks before the measurement: Java compiles what runs often.
WARM_UP = 20

client = KazooClient(sys.argv[1], timeout=60)
client.start(timeout=60)
lock = client.Lock("/lock")
for _ in range(WARM_UP):
    with lock:
        pass
latencies = []
begin = now = time.perf_counter()
while now < begin + float(sys.argv[2]):
    with lock:
        pass
    before, now = now, time.perf_counter()
    latencies.append((now - before) * 1e6)
client.stop()
latencies.sort()


def at(part):
    return latencies[int(part * (len(latencies) - 1))]


report = {
    "operations": len(latencies) + WARM_UP,
    "rate": len(latencies) / (now - begin),
    "least": latencies[0],
    "p50": at(0.5),
    "p99": at(0.99),
    "p999": at(0.999),
}
print(json.dumps(report))
