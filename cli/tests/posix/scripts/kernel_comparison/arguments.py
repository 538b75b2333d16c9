# Bad arguments of calls on connections in each state and on listeners: control data, names, directories, ioctls, attributes.
import ctypes, errno, os, socket, struct, time

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for name in "sendmsg", "recvmsg", "sendto", "sendfile", "fgetxattr", "flistxattr":
    getattr(libc, name).restype = ctypes.c_ssize_t

class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

class Message(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("name_length", ctypes.c_uint32), ("vectors", ctypes.c_void_p), ("count", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("control_length", ctypes.c_size_t), ("flags", ctypes.c_int), ("sent", ctypes.c_uint)]

# A page, behind which is one that cannot be used.
page = libc.mmap(None, 8192, 3, 0x22, -1, 0)
libc.mprotect(ctypes.c_void_p(page + 4096), ctypes.c_size_t(4096), 0)
nowhere = page + 4096
data = ctypes.create_string_buffer(b"hello", 5)
SOCKET, NOSIGNAL, DONTWAIT, OOB, MORE = socket.SOL_SOCKET, socket.MSG_NOSIGNAL, socket.MSG_DONTWAIT, socket.MSG_OOB, socket.MSG_MORE
STATES = "open", "shut", "shut both", "peer shut", "peer shut both", "peer closed", "reset", "listener", "fresh"

def call(function, *words):
    answer = function(*words)
    return answer if answer >= 0 else errno.errorcode[ctypes.get_errno()]

def pair(family=socket.AF_INET):
    with socket.create_server(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        return client, listener.accept()[0]

def in_state(state):
    client, server = pair()
    if state == "shut":
        client.shutdown(socket.SHUT_WR)
    elif state == "shut both":
        client.shutdown(socket.SHUT_RDWR)
    elif state == "peer shut":
        server.shutdown(socket.SHUT_WR)
    elif state == "peer shut both":
        server.shutdown(socket.SHUT_RDWR)
    elif state == "peer closed":
        server.close()
    elif state == "reset":
        server.setsockopt(SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.close()
    elif state == "listener":
        client = socket.create_server(("127.0.0.1", 0))
    elif state == "fresh":
        client = socket.socket()
    if state.startswith("peer") or state == "reset":
        time.sleep(0.01)
    return client, server

def message(control, length=None, count=1, name=None, name_length=0):
    buffer, vector = None, Vector(ctypes.addressof(data), 5)
    if isinstance(control, bytes):
        length = len(control) if length is None else length
        buffer = ctypes.create_string_buffer(control, len(control) + 1)
        control = ctypes.addressof(buffer)
    made = Message(name, name_length & 0xFFFFFFFF, ctypes.addressof(vector), count, control, length, 0, 0)
    made.kept = buffer, vector
    return made

def send(sock, *words, flags=NOSIGNAL | DONTWAIT, **named):
    return call(libc.sendmsg, sock.fileno(), ctypes.byref(message(*words, **named)), flags)

def control(kind, body=b"", length=None, level=SOCKET):
    raw = struct.pack("=Qii", 16 + len(body) if length is None else length, level, kind) + body
    return raw + bytes(-len(raw) % 8)

def number(value):
    return struct.pack("=I", value & 0xFFFFFFFF)

RIGHTS, PRIORITY, MARK, STAMPS, NEW_STAMPS, SENT_AT, DEVICE, NUMBERED = 1, 12, 36, 37, 65, 61, 79, 81
# Kernels before 6.18 do not know these.
recent = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 18)
BAD = control(99, number(0))

def values():
    yield "none", b"", 0
    for where, name in (None, "null"), (nowhere, "nowhere"), (nowhere - 16, "end"):
        for length in 0, 1, 15, 16, 17, 32, 4097, 100000, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 64) - 1:
            yield f"{name} {length}", where, length
    for length in 15, 16, 4097, 100000, 200000:
        yield f"{length} zeros", bytes(length), None
        yield f"{length} of another level", control(0, bytes(length), level=6)[:length], None
    for length in 0, 1, 15, 17, 20, 21, 24, 25, 100, (1 << 64) - 1, (1 << 64) - 8:
        for level in SOCKET, 6:
            yield f"length {length} of {level}", control(RIGHTS, number(0), length, level), None
            yield f"second {length} of {level}", control(RIGHTS, number(0)) + control(RIGHTS, number(0), length, level), None
    for rest in 8, 15, 16:
        yield f"zeros behind {rest}", control(RIGHTS, number(0)) + bytes(rest), None
    yield "without padding", control(RIGHTS, number(0))[:20], None
    for kind in range(110):
        if recent or kind not in (PRIORITY, DEVICE):
            for length in 0, 4, 8:
                yield f"type {kind} {length}", control(kind, bytes(length)), None
    for bit in range(32):
        if recent or bit != 18:
            for kind in STAMPS, NEW_STAMPS:
                yield f"{kind} {bit}", control(kind, number(1 << bit)), None
    for level in 0, 6, 17, 41, 263, 1234, -1:
        yield f"level {level}", control(99, number(0), level=level), None
    yield "a mark", control(MARK, number(7)), None
    for value in (0, 6, 7, 100, -1) if recent else ():
        yield f"priority {value}", control(PRIORITY, number(value)), None
    for value in (0, 7) if recent else ():
        yield f"device {value}", control(DEVICE, number(value)), None
        yield f"devices {value}", control(DEVICE, number(7)) + control(DEVICE, number(value)), None
        yield f"device {value} and bad", control(DEVICE, number(value)) + BAD, None

def checked(user, client, server):
    sent = 0
    for name, *words in values():
        answer = send(client, *words)
        sent += answer if answer == 5 else 0
        print(user, name, answer)
    client.close()
    received = b""
    while some := server.recv(1 << 16):
        received += some
    print("received", len(received) == sent, received == b"hello" * (sent // 5))

checked("root", *pair())
for state in STATES:
    for what, words in {
        "bad": (BAD,), "nowhere": (nowhere, 16), "large": (nowhere, 1 << 31), "good": (control(RIGHTS, number(0)),),
        **({"device": (control(DEVICE, number(7)),)} if recent else {}),
    }.items():
        client, server = in_state(state)
        answers = [
            send(client, *words, count=1025), send(client, *words, name=nowhere, name_length=16),
            send(client, *words, name=page, name_length=-1), send(client, *words, count=0),
            send(client, *words), send(client, *words), send(client, *words, flags=NOSIGNAL | DONTWAIT | OOB),
        ]
        print(state, what, *answers)

# Nothing of a message is sent with its error, and what is held back stays so.
client, server = pair()
server.setblocking(False)
print(client.send(b"held", MORE), send(client, BAD), send(client, BAD, flags=NOSIGNAL | MORE))
try:
    print(server.recv(100))
except OSError as cause:
    print(errno.errorcode[cause.errno])
each = message(control(RIGHTS, number(0))), message(BAD), message(b"", 0)
several = (Message * 3)(*each)
print(call(libc.sendmmsg, client.fileno(), several, 3, NOSIGNAL), [one.sent for one in several], call(libc.sendmmsg, client.fileno(), ctypes.byref(several[1]), 2, NOSIGNAL))
time.sleep(0.02)
print(server.recv(100))
for state in "listener", "fresh":
    client, server = in_state(state)
    for count, name, length in (1025, None, 0), (1, page, -1), (1, None, 0):
        print(state, call(libc.recvmsg, client.fileno(), ctypes.byref(message(b"", 0, count, name, length)), DONTWAIT))

# Names. A closed connection may be bound once more, or not, as its port is free.
for state in STATES:
    for length in (0, 1, 2, 4, 16, 28, 128, 129, 4097, -1) if state in ("open", "listener") else (2, 16, 129):
        for where, name in (page, "page"), (None, "null"), (nowhere, "nowhere"), (nowhere - 2, "end"):
            for family in (socket.AF_INET, socket.AF_UNSPEC) if name in ("page", "end") else (None,):
                client, server = in_state(state)
                if family is not None:
                    ctypes.memset(where, 0, nowhere - where)
                    ctypes.memmove(where, struct.pack("=H", family), 2)
                given = ctypes.c_void_p(where), ctypes.c_uint32(length & 0xFFFFFFFF)
                answers = [call(libc.sendto, client.fileno(), data, 5, NOSIGNAL, *given)]
                if state in ("open", "listener"):
                    answers.append(call(libc.bind, client.fileno(), *given))
                if state != "fresh":
                    answers.append(call(libc.connect, client.fileno(), *given))
                    answers.append(client.getsockopt(SOCKET, socket.SO_ACCEPTCONN))
                print(state, length, name, family, *answers)
    client, server = in_state(state)
    for length in None, 0, 1, 16, 17, -1:
        for where in page, None, nowhere:
            answers = []
            for function in (libc.getsockname, libc.getpeername):
                room = None if length is None else ctypes.byref(ctypes.c_uint32(length & 0xFFFFFFFF))
                answers.append(call(function, client.fileno(), ctypes.c_void_p(where), room))
            print(state, length, *answers)
with socket.create_server(("127.0.0.1", 0)) as listener:
    for length in None, 0, 1, 16, 17, -1:
        for where in page, None, nowhere:
            with socket.create_connection(listener.getsockname()):
                room = None if length is None else ctypes.byref(ctypes.c_uint32(length & 0xFFFFFFFF))
                new = call(libc.accept, listener.fileno(), ctypes.c_void_p(where), room)
                print("accept", length, new if isinstance(new, str) else os.close(new))

# A listener that is disconnected may listen again.
listener = socket.create_server(("127.0.0.1", 0))
name = listener.getsockname()
nothing = bytes(16)
print(call(libc.connect, listener.fileno(), nothing, 16), call(libc.connect, listener.fileno(), nothing, 16), listener.getsockname() == name)
listener.listen()
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
print(server.getsockname() == listener.getsockname(), listener.getsockname() == name)

# Files that cannot be sent.
folder = os.open("/", os.O_RDONLY)
for state in STATES:
    for offset in None, 0, -1:
        for count in 0, 5:
            client, server = in_state(state)
            at = None if offset is None else ctypes.byref(ctypes.c_long(offset))
            print(state, offset, count, call(libc.sendfile, client.fileno(), folder, at, ctypes.c_size_t(count)))

# Requests and attributes.
sockets = {"listener": socket.create_server(("127.0.0.1", 0)), "client": client, "server": server}
sockets["client 6"], sockets["server 6"] = pair(socket.AF_INET6)
for name, sock in sockets.items():
    place = ctypes.create_string_buffer(256)
    for request in 0x8905, 0x8906, 0x8907, 0x80108906, 0x80108907, 0x8913, 0x8915, 0x8927, 0x89E0:
        ctypes.memset(place, 0, 256)
        place.value = b"lo"
        print(name, hex(request), call(libc.ioctl, sock.fileno(), ctypes.c_ulong(request), place), place.raw[:24])
    print(name, call(libc.ioctl, sock.fileno(), ctypes.c_ulong(0x8905), ctypes.c_void_p(nowhere)))
    for room in 0, 2, 4, 64:
        ctypes.memset(place, 0, 256)
        for attribute in b"system.sockprotoname", b"system.sockprotonames", b"user.x":
            print(name, room, call(libc.fgetxattr, sock.fileno(), attribute, place, ctypes.c_size_t(room)), place.value)
    print(name, os.listxattr(sock.fileno()), call(libc.fgetxattr, sock.fileno(), ctypes.c_void_p(nowhere), place, ctypes.c_size_t(64)))

client, server = pair()
os.setuid(65534)
checked("nobody", client, server)
