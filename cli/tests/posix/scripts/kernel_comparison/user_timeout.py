# TCP_USER_TIMEOUT ends a connection whose peer does not read, whatever waits for it. The cases run side by side.
import errno, os, select, socket, sys, time
TCP, USER_TIMEOUT = socket.IPPROTO_TCP, 18
TIME = 1000

def named(act):
    try:
        return act()
    except OSError as cause:
        return errno.errorcode.get(cause.errno, str(cause))

def pair(timeout=TIME):
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    if timeout:
        client.setsockopt(TCP, USER_TIMEOUT, timeout)
    return client, server

# Until nothing more fits, also after the kernel has moved what is there.
def fill(client):
    client.setblocking(False)
    for _ in range(3):
        try:
            while True:
                client.send(bytes(65536))
        except BlockingIOError:
            time.sleep(0.03)

def after(client):
    client.setblocking(True)
    return named(lambda: client.recv(1)), named(lambda: client.recv(1)), named(lambda: client.send(b"x", socket.MSG_NOSIGNAL))

def watched(flags, seconds=8):
    epoll, (client, server) = select.epoll(), pair()
    epoll.register(client, flags)
    # Asleep long enough that nothing checks the connection unasked.
    for _ in range(30):
        epoll.poll(0.001)
    fill(client)
    if flags & select.EPOLLET:
        epoll.poll(0)
    found = [hex(events) for _, events in epoll.poll(seconds)]
    again = [hex(events) for _, events in epoll.poll(0)]
    print(found, again, after(client))

def polled(what):
    client, server = pair()
    fill(client)
    if what == "select":
        print([len(which) for which in select.select([client], [], [client], 8)], after(client))
    else:
        poll = select.poll()
        poll.register(client, what)
        print([hex(events) for _, events in poll.poll(8000)], client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), after(client))

def sending():
    client, server = pair()
    print(named(lambda: client.sendall(bytes(64 << 20))), after(client))

def receiving():
    client, server = pair()
    fill(client)
    client.setblocking(True)
    print(after(client))

# In one process while another sends.
def receiving_before():
    client, server = pair()
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b"x")
        print(after(client), flush=True)
        os._exit(0)
    os.read(ready, 1)
    # One call, so that the error is the child's: more than the peer's window.
    client.send(bytes(400_000), socket.MSG_DONTWAIT)
    os.waitpid(child, 0)

def set_afterwards():
    client, server = pair(0)
    fill(client)
    client.setsockopt(TCP, USER_TIMEOUT, TIME)
    poll = select.poll()
    poll.register(client, select.POLLOUT)
    print([hex(events) for _, events in poll.poll(20000)])

def not_for_little():
    client, server = pair()
    client.send(bytes(1000))
    client.settimeout(2)
    print(named(lambda: client.recv(1)), client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

def not_for_a_slow_reader():
    client, server = pair(5000)
    fill(client)
    whole = 0
    for _ in range(6):
        time.sleep(0.2)
        server.recv(600_000)
        whole += client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    print(whole)

def not_if_taken_back():
    client, server = pair()
    client.setsockopt(TCP, USER_TIMEOUT, 0)
    fill(client)
    poll = select.poll()
    poll.register(client, select.POLLOUT)
    print(poll.poll(2000))

CASES = [
    lambda: watched(select.EPOLLIN | select.EPOLLOUT | select.EPOLLET), lambda: watched(select.EPOLLIN),
    lambda: polled("select"), lambda: polled(select.POLLIN), lambda: polled(select.POLLOUT),
    sending, receiving, receiving_before, set_afterwards, not_for_little, not_for_a_slow_reader, not_if_taken_back,
]
children = []
for case in CASES:
    ends = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(ends[1], 1)
        case()
        sys.stdout.flush()
        os._exit(0)
    os.close(ends[1])
    children.append((child, ends[0]))
for number, (child, end) in enumerate(children):
    print(number, open(end).read().strip())
    os.waitpid(child, 0)
