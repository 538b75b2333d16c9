"""Health checks as HAProxy's: a connect without a quick ACK, and a reset at once. No server accepts them."""

import select
import socket

# One whose reset comes after the delayed ACK is accepted, on a busy machine.
PROBES = 5

listener = socket.create_server(("127.0.0.1", 0))
for _ in range(PROBES):
    probe = socket.socket()
    probe.setblocking(False)
    probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
    probe.connect_ex(listener.getsockname())
    select.select([], [probe], [])
    print("probe", probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    probe.close()
client = socket.create_connection(listener.getsockname())
accepted = 0
while listener.accept()[1] != client.getsockname():
    accepted += 1
print("all accepted", accepted == PROBES)
