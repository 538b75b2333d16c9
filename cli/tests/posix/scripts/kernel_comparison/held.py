# MSG_MORE and TCP_CORK hold back: what was sent is not there at once, and comes with what follows.
import errno, select, socket, time

MORE = socket.MSG_MORE

def pair():
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    listener.close()
    return client, server

def now(server):
    """What is there without waiting."""
    try:
        return len(server.recv(1000, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return "EAGAIN"

def more(client, server):
    client.send(b"x" * 10, MORE)
    found = now(server)
    client.send(b"x" * 20)
    return found, len(server.recv(30, socket.MSG_WAITALL))

def messages(client, server):
    client.sendmsg([b"x" * 10, b"x" * 5], [], MORE)
    ready = select.select([server], [], [], 0)[0] == [server]
    found = now(server)
    client.send(b"x" * 15)
    return ready, found, len(server.recv(30, socket.MSG_WAITALL))

def corked(client, server):
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    client.send(b"x" * 10)
    client.send(b"x" * 10)
    found = now(server)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    return found, len(server.recv(20, socket.MSG_WAITALL))

def ended(client, server):
    client.send(b"x" * 10, MORE)
    found = now(server)
    client.shutdown(socket.SHUT_WR)
    return found, len(server.recv(30, socket.MSG_WAITALL)), now(server)

for load in (more, messages, corked, ended):
    # After 200 ms the bytes come by themselves: on a machine that was busy for so long this shows
    # nothing.
    while True:
        client, server = pair()
        began = time.monotonic()
        printed = load(client, server)
        if time.monotonic() - began < 0.15:
            break
    print(load.__name__, *printed)
