"""A client of Redis that checks every answer until it is interrupted.

Each line of its output is the number of rounds so far.
"""

import signal
import socket
import sys
import time

over = False


def stop(*_):
    global over
    over = True


signal.signal(signal.SIGTERM, stop)
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
answers = connection.makefile("rb")
times = []


def query(*words):
    began = time.monotonic()
    connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
    line = answers.readline()
    if line[:1] == b"$":
        line = answers.read(int(line[1:]) + 2)[:-2]
    else:
        line = line.rstrip()
    times.append(time.monotonic() - began)
    return line


rounds = 0
while not over:
    value = b"%d " % rounds * (1 + rounds % 2000)
    assert query(b"SET", b"steady", value) == b"+OK"
    assert query(b"GET", b"steady") == value
    # Occasionally a new connection as well.
    if rounds % 50 == 0:
        with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as other:
            other.sendall(b"PING\r\n")
            assert other.recv(100) == b"+PONG\r\n"
    rounds += 1
    if rounds % 100 == 0:
        print("steady", rounds, flush=True)
times.sort()
print(f"all right: {rounds} rounds, median {times[len(times) // 2] * 1e6:.0f} us, longest {times[-1] * 1e3:.0f} ms")
