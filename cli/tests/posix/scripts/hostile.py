"""A hostile program that runs until it is killed.

`full` fills every queue and reads nothing. `scribble` writes into all memory that it shares.
`nonsense` sends invalid requests to the service, as an ordinary user. `ports` takes a number of
connections and all the ports that it can have.
"""

import array
import ctypes
import errno
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import time

MODE, PORT, SEED = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dice = random.Random(SEED)


def connect(port=PORT):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setblocking(False)
    return connection


def send(connection, data):
    """Whether the other end is still open."""
    try:
        connection.send(data)
    except BlockingIOError:
        pass
    except OSError:
        return False
    return True


def full():
    """Requests whose answers are never read, to a server and to itself, which accepts nothing."""
    # Room for all of them here: the last places of a backlog are those of the kernel's own queue.
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    others = [connect() for _ in range(20)]
    own = [connect(listener.getsockname()[1]) for _ in range(20)]
    request = b"*2\r\n$3\r\nGET\r\n$5\r\nlarge\r\n" * 100
    ready = False
    while True:
        for one in own:
            send(one, request)
        # The server ends those that never read, which is its own protection.
        others = [one for one in others if send(one, request)]
        if not ready:
            ready = True
            print("ready", flush=True)


def shared():
    """The writable memory that is shared with others."""
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            place, rights, _, _, _, *name = line.split()
            if "memfd:sietch-" in "".join(name) and rights.startswith("rw-s"):
                first, last = (int(word, 16) for word in place.split("-"))
                # What lies behind the first pages is mostly not there yet, and harmless.
                found.append((first, min(last - first, 1 << 16)))
    return found


def scribbler():
    """Writes until it is killed, or has destroyed the pages that it needs itself."""
    connections = [connect() for _ in range(4)]
    assert shared(), "nothing is shared: the kernel serves"
    while True:
        for start, length in shared():
            for _ in range(50):
                # Positions and marks are in the first lines.
                for reach in (length, min(length, 0x700)):
                    data = dice.choice([b"\0", b"\xff", dice.randbytes(1)]) * dice.choice([1, 4, 8])
                    ctypes.memmove(start + dice.randrange(reach - 8), data, len(data))
        connections = [one if send(one, b"PING\r\n") and dice.random() < 0.9 else connect() for one in connections]


def scribble():
    parent, count = os.getpid(), 0
    while True:
        dice.seed(SEED * 1000 + count)
        child = os.fork()
        if child == 0:
            # PR_SET_PDEATHSIG: no other process would end it.
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            if os.getppid() == parent:
                scribbler()
        time.sleep(0.03)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        count += 1
        if count == 10:
            print("ready", flush=True)


def wrong_descriptors():
    """Descriptors of every kind that the service must refuse: files, sockets, requests, ..."""
    connection = connect()
    listener = socket.create_server(("127.0.0.1", 0))
    one, other = socket.socketpair()
    # A socket that holds others in a message that is never received.
    socket.send_fds(one, [b"x"], [connection.fileno(), listener.fileno()])
    file = tempfile.TemporaryFile()
    held = [connection, listener, one, other, file, socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)]
    return held, [each.fileno() for each in held] + [0, 1, 2, *os.pipe(), os.open("/", os.O_PATH), os.memfd_create("x")]


def nonsense():
    os.setgid(65534)
    os.setuid(65534)
    held, numbers = wrong_descriptors()
    kept = []
    count = 0
    while True:
        try:
            service = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            kept.append(service)
            service.connect(os.environ["SIETCH_SOCKETS"])
            service.setblocking(False)
            # Kind 8 hands the service over to a successor, kind 7 revokes an application's
            # connections.
            head = b"SKT5" + bytes([1, 0, dice.randrange(16), 0])
            body = dice.choice([bytes(248), dice.randbytes(248), dice.randbytes(dice.randrange(5000))])
            for _ in range(dice.choice([1, 1, 3])):
                rights = array.array("i", dice.choices(numbers + [service.fileno()], k=dice.choice([0, 1, 1, 2, 4, 5, 250])))
                control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
                service.sendmsg([head + body], control)
        except OSError:
            pass
        del kept[: -dice.randrange(1, 40)]
        count += 1
        if count == 100:
            print("ready", flush=True)


def until_refused(takes):
    """Keeps what it is given until the system refuses more, or a time limit is reached."""
    kept = []
    try:
        for one in takes:
            if one is not None:
                kept.append(one)
    except OSError:
        pass
    return kept


def listening():
    """More listeners than the service allows an application (a thousand); none accepts."""
    for port in range(20000, 21500):
        yield socket.create_server(("127.0.0.1", port), backlog=50)


def connected(count):
    for number in range(count):
        yield socket.create_connection(("127.0.0.1", 20000 + number % 1000), timeout=10)


def bound():
    """All but a thousand, without which no program could connect, not even over the kernel."""
    for port in [*range(32768, 60000), *range(61000, 65536), *range(1024, 20000), *range(21500, 32768)]:
        one = socket.socket()
        try:
            one.bind(("127.0.0.1", port))
            yield one
        except OSError as cause:
            if cause.errno != errno.EADDRINUSE:
                raise
            yield None


def ports():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    held = [until_refused(listening())]
    reader, writer = os.pipe()
    # A process has not as many descriptors as there are ports.
    children = [lambda: until_refused(connected(SEED // 2))] * 2 + [lambda: until_refused(bound())] * 4
    for takes in children:
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            held.append(takes())
            os.write(writer, b"%d " % len(held[-1]))
            signal.pause()
    done = b""
    while done.count(b" ") < len(children):
        done += os.read(reader, 100)
    print("ready", len(held[0]), done.decode(), flush=True)
    signal.pause()


{"full": full, "scribble": scribble, "nonsense": nonsense, "ports": ports}[MODE]()
