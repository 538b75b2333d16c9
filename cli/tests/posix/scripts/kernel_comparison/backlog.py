# How many connections fit in the queue of a listener that never accepts.
import resource, select, socket

def fill(backlog, close):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(backlog)
    kept = []
    while True:
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(listener.getsockname())
        # One that fits is there at once. The first that does not fit may take any time.
        waits = select.poll()
        waits.register(client, select.POLLOUT)
        if not waits.poll(500):
            client.close()
            break
        if close:
            client.close()
        else:
            kept.append(client)
        kept.append(None)
    taken = sum(1 for one in kept if one is None)
    for _ in range(taken):
        connection, _ = listener.accept()
        if close:
            assert connection.recv(1) == b""
        connection.close()
    listener.setblocking(False)
    try:
        listener.accept()
        more = True
    except BlockingIOError:
        more = False
    print("backlog", backlog, "closed" if close else "open", taken, more)

# The largest that the kernel takes needs as many descriptors at either end.
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
for backlog in (1, 5, 64, 128) + ((4096,) if most > 9000 else ()):
    for close in (False, True):
        fill(backlog, close)
