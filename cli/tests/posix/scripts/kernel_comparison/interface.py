# Sockets of an interface: only what comes over it reaches them.
import errno, socket

def attempt(device, listens):
    listener = socket.socket()
    if listens:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, listens)
    listener.bind(("0.0.0.0", 0))
    listener.listen()
    client = socket.socket()
    client.settimeout(2)
    if device:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
    try:
        client.connect(("127.0.0.1", listener.getsockname()[1]))
        print(device, listens, "connected")
    except OSError as cause:
        print(device, listens, errno.errorcode.get(cause.errno, type(cause).__name__))

attempt(b"lo", b"")
attempt(b"", b"lo")
attempt(b"", b"one")
attempt(b"one", b"")
