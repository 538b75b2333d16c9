"""How a program sees the death of a peer that it waits for.

It prints one line for each case, the same on every kind of socket.
"""

import errno
import os
import select
import signal
import socket
import sys
import time

PORT = int(sys.argv[1])


def blocked(pid):
    """Waits until a process sleeps: polls it until it does so a few times in a row."""
    in_a_row = 0
    while in_a_row < 5:
        with open(f"/proc/{pid}/stat") as stat:
            state = stat.read().rsplit(") ", 1)[1][0]
        in_a_row = in_a_row + 1 if state == "S" else 0
        time.sleep(0.002)


def killer(victim, watched):
    """A process that kills one when another sleeps."""
    pid = os.fork()
    if pid == 0:
        blocked(watched)
        os.kill(victim, signal.SIGKILL)
        os._exit(0)
    return pid


def outcome(call):
    try:
        return repr(call())
    except OSError as error:
        return errno.errorcode[error.errno]


def events(connection, wanted):
    poll = select.poll()
    poll.register(connection, wanted)
    return poll.poll()[0][1]


def edges(connection):
    epoll = select.epoll()
    epoll.register(connection, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
    return epoll.poll()[0][1]


CALLS = {
    "recv": lambda connection: connection.recv(10),
    "recv, all of it": lambda connection: connection.recv(10, socket.MSG_WAITALL),
    "poll": lambda connection: events(connection, select.POLLIN),
    "poll with RDHUP": lambda connection: events(connection, select.POLLIN | select.POLLRDHUP),
    "epoll": edges,
    "select": lambda connection: len(select.select([connection], [], [])[0]),
}


def peer(unread, listener):
    """A process that connects, reads nothing, and waits to be killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        listener.close()
        connection = socket.create_connection(("127.0.0.1", PORT))
        os.write(writer, b"x")
        while True:
            signal.pause()
    os.close(writer)
    connection, _ = listener.accept()
    if unread:
        connection.sendall(b"unread")
    os.read(reader, 1)
    os.close(reader)
    return pid, connection


def case(name, listener, call, unread):
    pid, connection = peer(unread, listener)
    helper = killer(pid, os.getpid())
    first = outcome(lambda: call(connection))
    os.waitpid(helper, 0)
    os.waitpid(pid, 0)
    after = outcome(lambda: connection.recv(10)), outcome(lambda: connection.recv(10))
    failed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    connection.close()
    print(name, "unread" if unread else "nothing unread", first, *after, failed)


def never_accepted(listener):
    """Killed while it waits to be accepted: it is accepted all the same, and then closed."""
    pid = os.fork()
    if pid == 0:
        listener.close()
        connection = socket.create_connection(("127.0.0.1", PORT))
        connection.send(b"bye")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    connection, _ = listener.accept()
    print("killed in the queue", outcome(lambda: connection.recv(10)), outcome(lambda: connection.recv(10)))


def never_accepts():
    """A listener that is killed with a client in its queue that waits for an answer."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        queue = socket.create_server(("127.0.0.1", PORT + 1))
        os.write(writer, b"x")
        while True:
            signal.pause()
    os.read(reader, 1)
    connection = socket.create_connection(("127.0.0.1", PORT + 1))
    helper = killer(pid, os.getpid())
    print("killed with a queue", outcome(lambda: connection.recv(10)))
    os.waitpid(helper, 0)
    os.waitpid(pid, 0)
    print("and then", outcome(lambda: socket.create_connection(("127.0.0.1", PORT + 1))))
    # Its port is free.
    socket.create_server(("127.0.0.1", PORT + 1)).close()


signal.signal(signal.SIGPIPE, signal.SIG_IGN)
with socket.create_server(("127.0.0.1", PORT)) as listener:
    for unread in (False, True):
        for name, call in CALLS.items():
            case(name, listener, call, unread)
    never_accepted(listener)
    never_accepts()
