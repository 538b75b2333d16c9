# Names that are taken and names that are free: the output is the same as on the kernel's sockets.
import errno, os, socket

def attempt(what, call):
    try:
        call()
        print(what, "ok")
    except OSError as cause:
        print(what, errno.errorcode[cause.errno])

def bound(reuse, name):
    s = socket.socket()
    if reuse:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(name)
    return s

# A name that a connection has.
for reuse in (False, True):
    listener = socket.create_server(("127.0.0.1", 0))
    to = listener.getsockname()
    client = bound(reuse, ("127.0.0.1", 0))
    client.connect(to)
    server, peer = listener.accept()
    print("reuse", reuse, peer == client.getsockname())
    name = client.getsockname()
    attempt("a second socket", lambda: bound(reuse, name))
    if reuse:
        second = bound(reuse, name)
        attempt("a second connection", lambda: second.connect(to))
        second.close()
    attempt("a listener", lambda: bound(False, name).listen())
    server.close()
    client.close()
    listener.close()

# A name that a listener had.
name = ("127.0.0.1", 7071)
for reuse in (False, True):
    for _ in range(100):
        listener = bound(reuse, name)
        listener.listen(5)
        listener.close()
    print("a hundred listeners, one after the other", reuse)

# What was set on a socket that connects to a listener of the kernel, or to one of ours.
listener = socket.create_server(("127.0.0.1", 0))
for linger in ((1, 0), (1, 7), (0, 0)):
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"".join(n.to_bytes(4, "little") for n in linger))
    client.connect(listener.getsockname())
    left = client.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
    print("linger", [int.from_bytes(left[at:at + 4], "little") for at in (0, 4)])
    client.close()

# A Unix socket that was received and closed: its other end sees that at once.
a, b = socket.socketpair()
late = 0
for _ in range(500):
    probe, kept = socket.socketpair()
    kept.setblocking(False)
    socket.send_fds(a, [b"x"], [probe.fileno()])
    probe.close()
    _, received, _, _ = socket.recv_fds(b, 1, 1)
    os.close(received[0])
    try:
        assert kept.recv(1) == b""
    except BlockingIOError:
        late += 1
    kept.close()
print("ends that came late:", late)
