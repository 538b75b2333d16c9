# SO_ZEROCOPY on sockets that are Sietch's or may become so, and on others.
import errno, socket

ZEROCOPY = 60

def attempt(what, sock, value):
    try:
        sock.setsockopt(socket.SOL_SOCKET, ZEROCOPY, value)
        outcome = "ok"
    except OSError as cause:
        outcome = errno.errorcode[cause.errno]
    print(what, value, outcome, sock.getsockopt(socket.SOL_SOCKET, ZEROCOPY))

listener = socket.create_server(("127.0.0.1", 0))
client = socket.socket()
attempt("fresh", client, 1)
client.connect(listener.getsockname())
server, _ = listener.accept()
for what, sock in (("client", client), ("server", server), ("listener", listener)):
    for value in (1, 0):
        attempt(what, sock, value)
attempt("datagrams", socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 1)
client.sendall(b"bytes")
print(server.recv(5))
