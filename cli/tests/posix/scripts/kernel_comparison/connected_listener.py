# A listener that was shut down and then connects: to a listener, to a name without one, and to none. Its name, its options, and what an epoll reports.
import errno, select, socket, struct

def named(act):
    try:
        return act()
    except OSError as cause:
        return errno.errorcode.get(cause.errno, str(cause))

def in_epoll(epoll):
    return [hex(found) for _, found in epoll.poll(0.2)]

def options(one):
    get = one.getsockopt
    linger, time = get(socket.SOL_SOCKET, socket.SO_LINGER, 8), get(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
    return struct.unpack("ii", linger), struct.unpack("ll", time), get(socket.IPPROTO_TCP, socket.TCP_NODELAY), get(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)

def free_port(family, address):
    with socket.create_server((address, 0), family=family) as other:
        return other.getsockname()[1]

for family, address in (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"):
    for bound in "by the kernel", "by name", "not bound":
        for to in "a listener", "nothing":
            one = socket.socket(family)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if bound != "not bound":
                one.bind((address, free_port(family, address) if bound == "by name" else 0))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 7))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 3, 500000))
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.listen()
            own = one.getsockname()[1]
            epoll = select.epoll()
            epoll.register(one, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP)
            server = socket.create_server((address, 0), family=family)
            server.settimeout(5)
            print(bound, "listens", named(lambda: one.connect(server.getsockname())), in_epoll(epoll))
            one.shutdown(socket.SHUT_RDWR)
            print("is shut down", in_epoll(epoll), options(one))
            name = server.getsockname()[:2] if to == "a listener" else (address, free_port(family, address))
            print("connects to", to, named(lambda: one.connect(name)), options(one))
            if to == "a listener":
                accepted, peer = server.accept()
                print(peer[:2] == one.getsockname()[:2], (peer[1] == own) == (bound == "by name"), one.getpeername()[:2] == name, in_epoll(epoll))
                accepted.sendall(b"bytes")
                print(in_epoll(epoll), one.recv(9), named(one.accept), named(one.listen), named(lambda: one.connect(name)))
                accepted.close()
                print(in_epoll(epoll), one.recv(9))
            else:
                one.listen()
                print((one.getsockname()[1] == own) == (bound == "by name"), options(one), in_epoll(epoll))
                with socket.create_connection((address if bound != "not bound" else server.getsockname()[0], one.getsockname()[1])):
                    print(in_epoll(epoll), one.accept()[0].getsockname()[1] == one.getsockname()[1])
            one.close()
            server.close()
