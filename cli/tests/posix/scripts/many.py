"""Many connections at once: every one is used, then every one again."""

import resource
import select
import socket
import sys

MODE, PORT, COUNT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def serve():
    listener = socket.create_server(("127.0.0.1", PORT), backlog=4096)
    listener.setblocking(False)
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN)
    connections = {}
    while True:
        for fd, _ in epoll.poll():
            if fd == listener.fileno():
                try:
                    while True:
                        connection, _ = listener.accept()
                        connections[connection.fileno()] = connection
                        epoll.register(connection, select.EPOLLIN)
                except BlockingIOError:
                    continue
            data = connections[fd].recv(4096)
            if data:
                connections[fd].sendall(data)
            else:
                epoll.unregister(fd)
                connections.pop(fd).close()


def load():
    connections = [socket.create_connection(("127.0.0.1", PORT)) for _ in range(COUNT)]
    names = {connection.getsockname() for connection in connections}
    assert len(names) == COUNT, "no two have one name"
    for round in range(2):
        for number, connection in enumerate(connections):
            connection.sendall(b"%d %d" % (round, number))
        for number, connection in enumerate(connections):
            assert connection.recv(100) == b"%d %d" % (round, number)
    print("all right", flush=True)
    sys.stdin.read()


{"serve": serve, "load": load}[MODE]()
