"""A listener with connections that wait when the service ends, in a process that then forks.

waiting.py PORT FILE: connects to itself twice, waits until FILE exists, forks, and serves both.
"""
import os
import socket
import sys
import time

port, file = int(sys.argv[1]), sys.argv[2]
listener = socket.create_server(("127.0.0.1", port))
clients = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(2)]
print("waiting", flush=True)
while not os.path.exists(file):
    time.sleep(0.01)

child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0

listener.settimeout(20)
for client in clients:
    accepted, name = listener.accept()
    assert name == client.getsockname(), (name, client.getsockname())
    client.sendall(b"word")
    assert accepted.recv(100) == b"word"
    accepted.sendall(b"answer")
    assert client.recv(100) == b"answer"
print("served", flush=True)
listener.setblocking(False)
# Behind them the listener is registered again, or on the kernel.
for _ in range(3):
    try:
        listener.accept()
    except (BlockingIOError, ConnectionAbortedError):
        pass
print("registered", flush=True)
time.sleep(60)
