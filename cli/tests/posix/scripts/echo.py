"""One connection after the other, with blocking calls: accept, recv, send."""

import socket
import sys

listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen(16)
while True:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(connection.recv(100))
