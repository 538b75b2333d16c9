# Options that are stored, and where their values go: through connect, listen, accept and fork.
import errno, os, socket, struct
SOCKET, TCP, IP, IPV6 = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.IPPROTO_IPV6
# Level, number, values that are set.
STORED = [
    (SOCKET, 11, (1, 0)), (SOCKET, 12, (3,)), (SOCKET, 36, (7, 0)), (SOCKET, 40, (1,)), (SOCKET, 41, (1,)), (SOCKET, 42, (2, 0, -1)),
    (SOCKET, 43, (1,)), (SOCKET, 44, (1,)), (SOCKET, 45, (1,)), (SOCKET, 46, (5,)), (SOCKET, 69, (1,)), (SOCKET, 70, (5,)),
    (SOCKET, 72, (1, 9)), (SOCKET, 74, (1,)), (SOCKET, 75, (1,)), (SOCKET, 82, (1,)),
    (TCP, 9, (1,)), (TCP, 16, (1,)), (TCP, 17, (1,)), (TCP, 18, (5000,)), (TCP, 19, (0,)), (TCP, 27, (1, 2, 3)), (TCP, 30, (0, 1, 2)),
    (TCP, 34, (1, 2)), (TCP, 36, (1, 2)), (TCP, 37, (5,)), (TCP, 44, (2000, 0)), (TCP, 99, (1,)),
    (IP, 4, (b"",)), (IP, 6, (1,)), (IP, 7, (1,)), (IP, 8, (1,)), (IP, 11, (1,)), (IP, 12, (1,)), (IP, 13, (1,)), (IP, 15, (1,)),
    (IP, 18, (1,)), (IP, 19, (1,)), (IP, 20, (1,)), (IP, 21, (9, 256)), (IP, 49, (0,)), (IP, 51, (0,)), (IP, 99, (1,)),
    (IPV6, 11, (1,)), (IPV6, 25, (1,)), (IPV6, 33, (1,)), (IPV6, 49, (1,)), (IPV6, 51, (1,)), (IPV6, 54, (b"",)), (IPV6, 60, (1,)),
    (IPV6, 66, (1,)), (IPV6, 70, (1,)), (IPV6, 72, (1,)), (IPV6, 73, (4,)), (IPV6, 74, (1,)), (IPV6, 78, (1,)),
]

def named(act):
    try:
        return act()
    except OSError as cause:
        return errno.errorcode[cause.errno]

def get(sock, level, number, room=4):
    value = named(lambda: sock.getsockopt(level, number, room))
    return value.hex() if isinstance(value, bytes) else value

def set_(sock, level, number, value):
    return named(lambda: sock.setsockopt(level, number, value) or "ok")

def host(family):
    return "127.0.0.1" if family == socket.AF_INET else "::1"

def listening(family, option=None):
    listener = socket.socket(family)
    said = set_(listener, *option) if option else None
    listener.bind((host(family), 0))
    listener.listen()
    return listener, said

def connected(family, listener, option=None):
    client = socket.socket(family)
    said = set_(client, *option) if option else None
    client.connect(listener.getsockname()[:2])
    server, _ = listener.accept()
    return client, server, said

def each(family, level, number, value):
    option = (level, number, value)
    listener, said = listening(family, option)
    print("listener", said, get(listener, level, number), end=" ")
    client, server, said = connected(family, listener, option)
    print("client", said, get(client, level, number), "accepted", get(server, level, number), end=" ")
    for sock in (client, server, listener):
        sock.close()
    listener, _ = listening(family)
    client, server, _ = connected(family, listener)
    child = os.fork()
    if child == 0:
        print("later", set_(server, *option), set_(listener, *option), end=" ", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print("parent", get(server, level, number))
    for sock in (client, server, listener):
        sock.close()

for level, number, values in STORED:
    for family in (socket.AF_INET, socket.AF_INET6) if level in (SOCKET, IP) else (socket.AF_INET6 if level == IPV6 else socket.AF_INET,):
        for value in values:
            print(level, number, value, family.name, end=": ", flush=True)
            each(family, level, number, value)

listener, _ = listening(socket.AF_INET)
client, server, _ = connected(socket.AF_INET, listener)
# Two names for one option.
time = struct.pack("qq", 0, 20_000)
print(set_(client, SOCKET, 66, time), get(client, SOCKET, 20, 16), named(lambda: client.recv(1)))
print(set_(client, SOCKET, 67, time), get(client, SOCKET, 21, 16), get(client, SOCKET, 67, 16))
print(set_(server, SOCKET, 32, 300_000), get(server, SOCKET, 7), get(server, SOCKET, 32))
print(set_(server, SOCKET, 33, 300_000), get(server, SOCKET, 8), get(server, SOCKET, 33))
print(set_(client, SOCKET, 47, 5000), get(client, SOCKET, 47, 8), get(server, SOCKET, 47, 8))

# What is not stored.
print([get(sock, IP, 14) for sock in (client, server, listener)], len(get(client, SOCKET, 28)), get(client, SOCKET, 28, 17))

# SO_PEEK_OFF: each peek moves on, each read back.
print(get(server, SOCKET, 42))
client.sendall(b"abcdef")
print(server.recv(2, socket.MSG_PEEK), server.recv(2, socket.MSG_PEEK), get(server, SOCKET, 42))
print(set_(server, SOCKET, 42, 1), server.recv(3, socket.MSG_PEEK), get(server, SOCKET, 42), server.recv(2), get(server, SOCKET, 42))
print(server.recv(9, socket.MSG_PEEK), get(server, SOCKET, 42), named(lambda: server.recv(9, socket.MSG_PEEK | socket.MSG_DONTWAIT)))
print(server.recv(1), get(server, SOCKET, 42), server.recv(2), get(server, SOCKET, 42), server.recv(1), get(server, SOCKET, 42))
child = os.fork()
if child == 0:
    client.sendall(b"gh")
    client.sendall(b"ij")
    os._exit(0)
print(server.recv(4, socket.MSG_PEEK | socket.MSG_WAITALL), get(server, SOCKET, 42))
os.waitpid(child, 0)
print(set_(server, SOCKET, 42, -1), server.recv(9, socket.MSG_PEEK), server.recv(9), get(server, SOCKET, 42))

# TCP_INQ: what is left comes with what is received.
print(set_(server, TCP, 36, 1))
client.sendall(b"0123456789")
server.recv(10, socket.MSG_PEEK | socket.MSG_WAITALL)
print(server.recvmsg(4, 64), server.recvmsg(2, 64, socket.MSG_PEEK), server.recvmsg(1), server.recvmsg(1, 17), server.recvmsg(1, 20))
client.shutdown(socket.SHUT_WR)
while not server.recvmsg(1, 64, socket.MSG_PEEK)[1][0][2] == struct.pack("i", 4):
    pass
print(server.recvmsg(1, 64), server.recvmsg(9, 64), server.recvmsg(9, 64))

# What only the kernel can do, before the connection.
listener, said = listening(socket.AF_INET, (SOCKET, socket.SO_TIMESTAMP if hasattr(socket, "SO_TIMESTAMP") else 29, 1))
client, server, _ = connected(socket.AF_INET, listener)
messages = []
# The kernel stamps packets a moment after the option is first set on the machine.
while not messages:
    client.sendall(b"x")
    data, messages, flags, _ = server.recvmsg(1, 64)
print(said, data, [(level, kind, len(value)) for level, kind, value in messages], flags)
