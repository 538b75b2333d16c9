# A server that runs out of descriptors in accept: further clients wait, as on the kernel, and are
# served once there is room again. With `hard` the limit cannot be raised.
import errno, os, resource, socket, sys

LIMIT, CLIENTS = 64, 75
listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
connected, connected_end = os.pipe()
ends, over = os.pipe()
child = os.fork()
if child == 0:
    listener_name = listener.getsockname()
    listener.close()
    clients = [socket.create_connection(listener_name) for _ in range(CLIENTS)]
    os.write(connected_end, b"x")
    served = [client.recv(10) for client in clients]
    print("served", served.count(b"hello"), "of", CLIENTS, flush=True)
    os._exit(0)
os.read(connected, 1)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
HARD = sys.argv[1:] == ["hard"]
resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT if HARD else hard))
listener.setblocking(False)
accepted, errors = [], set()
for _ in range(CLIENTS):
    try:
        connection = listener.accept()[0]
        connection.send(b"hello")
        accepted.append(connection)
    except OSError as cause:
        errors.add(errno.errorcode[cause.errno])
print("accepted", len(accepted), "errors", sorted(errors), "highest", max(c.fileno() for c in accepted), flush=True)
# An option, another connection and a duplicate need descriptors for a moment, or have none.
one = accepted[0]
one.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x10)
print("limit", resource.getrlimit(resource.RLIMIT_NOFILE)[0] == LIMIT, flush=True)
try:
    one.dup()
except OSError as cause:
    print("dup", errno.errorcode[cause.errno], flush=True)
count = len(accepted)
if HARD:
    # One after another has the last number.
    last = accepted.pop()
    while count < CLIENTS:
        last.close()
        listener.settimeout(60)
        last = listener.accept()[0]
        last.send(b"hello")
        count += 1
        if last.fileno() != LIMIT - 1:
            print("not the last number:", last.fileno(), flush=True)
else:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
# More wait than a listener's pair holds: the service sends the others once there is room.
listener.settimeout(60)
while count < CLIENTS:
    connection = listener.accept()[0]
    connection.send(b"hello")
    accepted.append(connection)
    count += 1
os.waitpid(child, 0)
