# A listener that was shut down: what poll, select and epoll report of it, before and after it listens again, and which port it has.
# And a connection that is over, whose port is free unless the program had chosen it.
import errno, select, socket, threading

def named(act):
    try:
        return act()
    except OSError as cause:
        return errno.errorcode.get(cause.errno, str(cause))

def polled(one, events=select.POLLIN | select.POLLOUT | 0x2000):
    poll = select.poll()
    poll.register(one, events)
    return [hex(found) for _, found in poll.poll(0)]

def in_epoll(epoll):
    return [hex(found) for _, found in epoll.poll(0)]

for family, address in (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"):
    for bound in "by the kernel", "by name", "not bound":
        one = socket.socket(family)
        if bound == "by name":
            with socket.create_server((address, 0), family=family) as other:
                port = other.getsockname()[1]
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((address, port))
        elif bound == "by the kernel":
            one.bind((address, 0))
        one.listen()
        port = one.getsockname()[1]
        epoll, edges = select.epoll(), select.epoll()
        epoll.register(one, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP)
        edges.register(one, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        print(bound, polled(one), in_epoll(epoll), in_epoll(edges))
        sleeper = threading.Thread(target=lambda: print("asleep", named(one.accept)))
        sleeper.start()
        one.shutdown(socket.SHUT_RD)
        sleeper.join()
        print(polled(one), polled(one, select.POLLIN), in_epoll(epoll), in_epoll(edges), in_epoll(edges))
        print([len(which) for which in select.select([one], [one], [one], 0)], one.getblocking(), one.getsockname()[1] == port)
        print(named(one.accept), named(lambda: one.shutdown(socket.SHUT_RD)), one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        one.listen()
        now = one.getsockname()[1]
        print("again", polled(one), in_epoll(epoll), now == port)
        client = socket.create_connection(("127.0.0.1" if bound == "not bound" and family == socket.AF_INET else address, now))
        epoll.poll()
        print(polled(one), in_epoll(epoll), one.accept()[0].getsockname()[1] == now)
        one.close()
        client.close()

for bound in "not bound", "by the kernel", "by name":
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        if bound != "not bound":
            port = 0
            if bound == "by name":
                with socket.create_server(("127.0.0.1", 0)) as other:
                    port = other.getsockname()[1]
                client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind(("127.0.0.1", port))
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        server.close()
        client.recv(1)
        client.shutdown(socket.SHUT_RDWR)
        print("over", bound, named(lambda: client.bind(("127.0.0.1", 0))))
