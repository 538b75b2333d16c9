"""Connections that end after one request.

usage: short_lived.py serve PORT | short_lived.py load PORT CONNECTIONS
"""

import socket
import sys
import threading

ROLE, PORT = sys.argv[1], int(sys.argv[2])


def answer(connection):
    with connection:
        while question := connection.recv(1000):
            connection.sendall(question.upper() * 20)


def serve():
    with socket.create_server(("127.0.0.1", PORT), backlog=100) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


def query(connection, text):
    connection.sendall(text)
    got = b""
    while len(got) < 20 * len(text):
        more = connection.recv(1000)
        assert more, "the answer ended too soon"
        got += more
    assert got == text.upper() * 20, got


def load(connections):
    with socket.create_connection(("127.0.0.1", PORT)) as long_lived:
        for number in range(connections):
            text = b"question %d " % number
            with socket.create_connection(("127.0.0.1", PORT)) as short_lived:
                query(short_lived, text)
                short_lived.shutdown(socket.SHUT_WR)
                assert short_lived.recv(1) == b""
            if number % 100 == 0:
                query(long_lived, text)
    print("all right:", connections, "connections")


if ROLE == "serve":
    serve()
else:
    load(int(sys.argv[3]))
