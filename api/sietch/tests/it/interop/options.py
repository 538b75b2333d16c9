"""Talks to an echo service with socket options that few use: options.py ADDRESS PORT."""

import socket
import struct
import sys
import threading

ADDRESS = (sys.argv[1], int(sys.argv[2]))
FAMILY = socket.AF_INET6 if ":" in ADDRESS[0] else socket.AF_INET
BYTES = bytes(range(256)) * 2000
TCP_FASTOPEN_CONNECT = 30


def exchange(name, *options, data=BYTES, piece=65536, flags=0, connect=True):
    """Sends `data` in pieces, closes this side, and expects the same back."""
    with socket.socket(FAMILY, socket.SOCK_STREAM) as client:
        client.settimeout(30)
        for level, option, value in options:
            client.setsockopt(level, option, value)
        if connect:
            client.connect(ADDRESS)
        got = bytearray()

        def read():
            while part := client.recv(65536):
                got.extend(part)

        reader = threading.Thread(target=read)
        if connect:
            reader.start()
        for begin in range(0, len(data), piece):
            part = data[begin:begin + piece]
            if connect:
                client.sendall(part, flags)
            else:
                # Data in the SYN, if the peer would take it. With a time limit it would not wait for the handshake.
                client.settimeout(None)
                sent = client.sendto(part, socket.MSG_FASTOPEN, ADDRESS)
                client.sendall(part[sent:])
                connect = True
                reader.start()
        client.shutdown(socket.SHUT_WR)
        reader.join()
        if bytes(got) != data:
            sys.exit(f"{name}: {len(got)} bytes came back of {len(data)}, or wrong ones")


TCP = socket.IPPROTO_TCP
exchange("nothing odd")
exchange("small segments", (TCP, socket.TCP_MAXSEG, 88))
exchange("segments of 200", (TCP, socket.TCP_MAXSEG, 200))
exchange("clamped window", (TCP, socket.TCP_WINDOW_CLAMP, 3000), data=BYTES[:100000])
exchange("small buffers", (socket.SOL_SOCKET, socket.SO_RCVBUF, 1), (socket.SOL_SOCKET, socket.SO_SNDBUF, 1),
         data=BYTES[:50000])
exchange("no delay, bytes", (TCP, socket.TCP_NODELAY, 1), data=BYTES[:2000], piece=1)
exchange("cork", (TCP, socket.TCP_CORK, 1), data=BYTES[:100000], piece=100)
exchange("quick acknowledgements", (TCP, socket.TCP_QUICKACK, 1))
exchange("slow acknowledgements", (TCP, socket.TCP_QUICKACK, 0))
exchange("keepalive", (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (TCP, socket.TCP_KEEPIDLE, 1))
exchange("user timeout", (TCP, 18, 5000))
exchange("type of service", (socket.IPPROTO_IP, socket.IP_TOS, 0x10) if FAMILY == socket.AF_INET
         else (socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 0x10))
if FAMILY == socket.AF_INET:
    # Options of IPv4 itself: a router alert in every packet.
    exchange("options of IPv4", (socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([148, 4, 0, 0])))
    exchange("no discovery of the path", (socket.IPPROTO_IP, 10, 0))
# Urgent data are data (RFC 6093 section 4).
exchange("urgent data", data=BYTES[:1000], piece=10, flags=socket.MSG_OOB)
exchange("fast open", connect=False, data=BYTES[:5000])
exchange("fast open by connect", (TCP, TCP_FASTOPEN_CONNECT, 1), data=BYTES[:5000])

# Thin streams and a reader that is asleep: the window closes, and opens again.
with socket.socket(FAMILY, socket.SOCK_STREAM) as sleeper:
    sleeper.settimeout(30)
    sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sleeper.connect(ADDRESS)
    sleeper.setblocking(False)
    sent = 0
    try:
        while True:
            sent += sleeper.send(BYTES)
    except BlockingIOError:
        pass
    sleeper.settimeout(30)
    got = 0
    while got < sent:
        got += len(sleeper.recv(1500))
    # Unread bytes and a linger of zero: a reset.
    sleeper.sendall(b"x" * 100)
    sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
