"""An unmodified program with sockets of a VNIC.

The test waits for the lines that it prints, or compares them.
"""
import array, errno, fcntl, os, signal, socket, struct, subprocess, sys

ADDRESS, PORT = "10.85.0.2", 6380


def say(*words):
    print(*words, flush=True)


def listener(backlog=16):
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((ADDRESS, PORT))
    server.listen(backlog)
    return server


def take(number):
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=number)


def answer(connection, who):
    question = connection.recv(100)
    connection.sendall(who + b":" + question)


def names():
    """A name is taken from bind on, and by one socket alone."""
    first, second = socket.socket(), socket.socket()
    first.bind((ADDRESS, PORT))
    try:
        second.bind((ADDRESS, PORT))
        say("both")
    except OSError as error:
        say(errno.errorcode[error.errno])
    # A copy in a child does not end with the parent's.
    first.close()
    second.bind((ADDRESS, PORT))
    say("bound", second.getsockname()[1])
    second.listen()
    third = socket.socket()
    third.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        third.bind((ADDRESS, PORT))
        say("both")
    except OSError as error:
        say(errno.errorcode[error.errno])


def hand_on(connection):
    """The same connection in a child of fork, after exec, and received in a message."""
    child = os.fork()
    if child == 0:
        answer(connection, b"fork")
        os._exit(0)
    os.waitpid(child, 0)
    number = connection.fileno()
    subprocess.run([sys.executable, __file__, "exec", str(number)], pass_fds=[number], check=True)
    here, there = socket.socketpair()
    receiver = subprocess.Popen([sys.executable, __file__, "message", str(there.fileno())], pass_fds=[there.fileno()])
    here.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [number]))])
    receiver.wait()
    answer(connection, b"here")


def server():
    """Connections to the network and within the VNIC are passed on alike."""
    accepting = listener()
    say("listening")
    own = socket.create_connection((ADDRESS, PORT))
    for _ in range(2):
        connection, _ = accepting.accept()
        child = os.fork()
        if child == 0:
            hand_on(connection)
            os._exit(0)
        connection.close()
    for who in [b"fork", b"exec", b"message", b"here"]:
        own.sendall(b"?")
        say("own", own.recv(100).decode())
    os.wait()
    os.wait()
    say("done")


def exec_(number):
    answer(take(number), b"exec")


def message(number):
    with take(number) as unix:
        _, ancillary, _, _ = unix.recvmsg(1, socket.CMSG_SPACE(4))
    answer(take(struct.unpack("i", ancillary[0][2])[0]), b"message")


def options():
    """Options reach the engine, and TCP_INFO comes from it."""
    connection, _ = listener().accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"dctcp")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.recv(100)
    information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 168)
    state, segment = information[0], struct.unpack_from("I", information, 16)[0]
    received = struct.unpack_from("Q", information, 128)[0]
    say("state", state, "segment", segment == connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) > 500)
    say("received", received, connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).strip(b"\0").decode())
    # SO_LINGER with no time is a reset.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    say("closed")


def serve():
    """Answers one connection after the other for ever, and prints how each ended."""
    accepting = listener()
    say("listening")
    while True:
        try:
            connection, _ = accepting.accept()
        except OSError as error:
            say("accept", errno.errorcode[error.errno])
            if error.errno == errno.EINVAL:
                return
            continue
        try:
            while data := connection.recv(100):
                connection.sendall(data)
            say("end")
        except OSError as error:
            say(errno.errorcode[error.errno])
        connection.close()


what = {"names": names, "server": server, "options": options, "serve": serve, "exec": exec_, "message": message}
signal.alarm(60)
what[sys.argv[1]](*map(int, sys.argv[2:]))
