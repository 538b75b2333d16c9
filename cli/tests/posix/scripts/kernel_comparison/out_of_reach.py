"""A server that gives up its rights before it listens, and one that does so afterwards."""

import os
import socket


def serve(gives_up_first):
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    if not gives_up_first:
        server.listen()
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    if gives_up_first:
        server.listen()
    with socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        client.sendall(b"question")
        accepted.sendall(accepted.recv(100).upper())
        print("served", client.recv(100), flush=True)


for gives_up_first in (True, False):
    child = os.fork()
    if child == 0:
        serve(gives_up_first)
        os._exit(0)
    print(gives_up_first, os.waitpid(child, 0)[1], flush=True)
