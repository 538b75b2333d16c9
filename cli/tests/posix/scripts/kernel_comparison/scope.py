# Connections over link-local addresses of IPv6: the scope is part of every name.
import errno, socket

line = next(line.split() for line in open("/proc/net/if_inet6") if line.startswith("fe80"))
address = ":".join(line[0][at:at + 4] for at in range(0, 32, 4))
index = int(line[1], 16)
for name in ("::", address):
    listener = socket.socket(socket.AF_INET6)
    listener.bind((name, 0, 0, 0 if name == "::" else index))
    listener.listen()
    port = listener.getsockname()[1]
    print("listener", listener.getsockname()[3] == (0 if name == "::" else index))
    client = socket.socket(socket.AF_INET6)
    client.connect((address, port, 0, index))
    server, peer = listener.accept()
    names = (peer, server.getsockname(), server.getpeername(), client.getsockname(), client.getpeername())
    print([one[3] == index for one in names], peer == client.getsockname())
    for scope in (0, 1):
        other = socket.socket(socket.AF_INET6)
        other.settimeout(5)
        try:
            other.connect((address, port, 0, scope))
            print("scope", scope, "connected")
        except OSError as cause:
            print("scope", scope, errno.errorcode.get(cause.errno, cause))
