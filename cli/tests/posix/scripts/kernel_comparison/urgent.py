# Urgent data: the mark, the byte by itself, in line, passed over; readiness, SIGURG, sockets that are marked and end.
import array, errno, fcntl, os, select, signal, socket, struct, termios, time
OOB, PEEK, DONTWAIT, WAITALL = socket.MSG_OOB, socket.MSG_PEEK, socket.MSG_DONTWAIT, socket.MSG_WAITALL
SIOCATMARK = 0x8905

def named(act):
    try:
        return act()
    except OSError as cause:
        return errno.errorcode[cause.errno]

def pair():
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    return client, server

def number(sock, request):
    value = array.array("i", [-1])
    fcntl.ioctl(sock, request, value)
    return value[0]

def state(sock):
    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLPRI)
    events = [hex(events) for _, events in poll.poll(0)]
    ready = [len(which) for which in select.select([sock], [], [sock], 0)]
    return f"mark={number(sock, SIOCATMARK)} waiting={number(sock, termios.FIONREAD)} poll={events} select={ready}"

def arrived(sock):
    poll = select.poll()
    poll.register(sock, select.POLLPRI)
    poll.poll(5000)

def receive(sock, length, flags=0):
    return named(lambda: sock.recv(length, flags | DONTWAIT))

# Nothing urgent.
client, server = pair()
print(receive(server, 1, OOB), state(server))
# Data before and after: a read ends before the urgent byte, the next one passes over it.
print(client.send(b"abc", OOB), client.send(b"def"))
arrived(server)
print(state(server), receive(server, 9, OOB | PEEK), receive(server, 9, OOB), receive(server, 9, OOB), state(server))
print(receive(server, 1), state(server), receive(server, 9), state(server), receive(server, 9, PEEK), state(server))
print(receive(server, 9), state(server), receive(server, 9, OOB), receive(server, 9))
# Passed over unread.
client.send(b"xyz", OOB)
client.send(b"12")
arrived(server)
print(receive(server, 9), receive(server, 9), state(server), receive(server, 1, OOB))
# Alone: nothing to read.
client.send(b"!", OOB)
arrived(server)
print(state(server), receive(server, 9), state(server), receive(server, 9, OOB))
client.send(b"?", OOB)
arrived(server)
print(server.recvmsg(9, 9, OOB), state(server))
client.send(b"a", OOB)
arrived(server)
print(server.recvmsg_into([bytearray(0)], 0, OOB), named(lambda: server.recvmsg(9, 0, OOB)), state(server))
# All of it at once stops there as well.
client.send(b"0123456789", OOB)
client.send(b"rest")
arrived(server)
print(server.recv(13, WAITALL), server.recv(4, WAITALL), state(server))
# In line.
server.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
client.send(b"in-line", OOB)
client.send(b"after")
arrived(server)
print(state(server), receive(server, 9, OOB), receive(server, 99), state(server), receive(server, 99), state(server))
server.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 0)
# Watched.
epoll = select.epoll()
epoll.register(server, select.EPOLLPRI | select.EPOLLET)
print(epoll.poll(0))
client.send(b"w")
client.send(b"u", OOB)
print([hex(events) for _, events in epoll.poll(5)], [hex(events) for _, events in epoll.poll(0)], receive(server, 9, OOB), receive(server, 9))
client.send(b"v", OOB)
print([hex(events) for _, events in epoll.poll(5)], receive(server, 1, OOB))
level = select.epoll()
level.register(server, select.EPOLLIN | select.EPOLLPRI)
print([hex(events) for _, events in level.poll(0)])
client.send(b"more")
print([hex(events) for _, events in level.poll(5)], receive(server, 9))
# A thread that sleeps is woken by data behind the urgent byte.
client.send(b"s", OOB)
arrived(server)
child = os.fork()
if child == 0:
    time.sleep(0.1)
    client.send(b"woken")
    os._exit(0)
print(server.recv(9))
os.waitpid(child, 0)
# Both ways, and the end.
server.send(b"back", OOB)
arrived(client)
print(receive(client, 1, OOB), receive(client, 9))
client.send(b"last", OOB)
client.close()
arrived(server)
print(receive(server, 9, OOB), receive(server, 9), receive(server, 9), receive(server, 9, OOB))
# Unread urgent data are unread data.
client, server = pair()
client.send(b"z", OOB)
arrived(server)
server.close()
time.sleep(0.05)
print(receive(client, 9))
# SIGURG: owners that were set before and after the connection.
signals = []
signal.signal(signal.SIGURG, lambda number, _: signals.append(number))
listener = socket.create_server(("127.0.0.1", 0))
client = socket.socket()
fcntl.fcntl(client, fcntl.F_SETOWN, os.getpid())
client.connect(listener.getsockname())
server, _ = listener.accept()

def signalled(sock, expected):
    sock.send(b"ab", OOB)
    until = time.monotonic() + (5 if expected else 0.1)
    while not signals and time.monotonic() < until:
        time.sleep(0.001)
    found = len(signals)
    signals.clear()
    return found

print(signalled(server, True), signalled(client, False), fcntl.fcntl(client, fcntl.F_GETOWN) == os.getpid())
fcntl.ioctl(server, 0x8902, struct.pack("i", os.getpid()))
print(signalled(client, True), signalled(client, True), receive(server, 9), receive(client, 9, OOB), receive(client, 9))
for _ in range(100):
    client.send(b"n")
    server.recv(9)
print(receive(server, 9))
