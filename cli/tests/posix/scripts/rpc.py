"""A client of the example stream_rpc_server.

rpc.py PORT ask CALL...            sends the calls together and prints the answers
rpc.py PORT hold                   connects, and calls again after SIGUSR1
rpc.py PORT until-reset            connects, and waits for the reset of the connection
rpc.py PORT torture SEED ROUNDS    random sizes, pieces and ends
"""

import random
import signal
import socket
import struct
import sys
import threading


def connect():
    return socket.create_connection(("127.0.0.1", int(sys.argv[1])))


def lines(connection, count):
    """Receives so many answers."""
    received = b""
    while received.count(b"\n") < count:
        more = connection.recv(65536)
        if not more:
            raise SystemExit(f"the end after {received!r}")
        received += more
    return received


def ask(calls):
    connection = connect()
    connection.sendall("".join(call + "\n" for call in calls).encode())
    sys.stdout.write(lines(connection, len(calls)).decode())
    connection.shutdown(socket.SHUT_WR)
    if connection.recv(1):
        raise SystemExit("more than the answers")


def hold():
    connection = connect()
    connection.sendall(b"echo held\n")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    sys.stdout.write(lines(connection, 1).decode())
    sys.stdout.flush()
    signal.sigwait({signal.SIGUSR1})
    connection.sendall(b"echo answered\n")
    sys.stdout.write(lines(connection, 1).decode())


def until_reset():
    connection = connect()
    connection.sendall(b"echo held\n")
    sys.stdout.write(lines(connection, 1).decode())
    sys.stdout.flush()
    try:
        print("received", connection.recv(1))
    except ConnectionResetError:
        print("reset")


def torture(seed, rounds):
    chance = random.Random(int(seed))
    for _ in range(int(rounds)):
        connection = connect()
        texts = [
            bytes(chance.choices(b"abcdefgh", k=chance.choice([0, 1, 7, 100, 4000, 30000, 60000])))
            for _ in range(chance.randrange(1, 20))
        ]
        calls = b"".join(b"echo " + text + b"\n" for text in texts)
        wanted = b"".join(text + b"\n" for text in texts)
        end = chance.choice(["all", "all", "shutdown", "unread", "linger"])

        def send():
            at = 0
            while at < len(calls):
                size = chance.choice([1, 13, 1000, 16384, 100000])
                connection.sendall(calls[at : at + size])
                at += size
            if end == "shutdown":
                connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        received = b""
        least = len(wanted) if end in ("all", "shutdown") else len(wanted) // 2
        while len(received) < least:
            more = connection.recv(1 << chance.randrange(1, 18))
            if not more:
                raise SystemExit(f"the end after {len(received)} of {len(wanted)} bytes")
            received += more
        if wanted[: len(received)] != received:
            raise SystemExit(f"wrong bytes within {len(received)}")
        if end == "shutdown" and connection.recv(1):
            raise SystemExit("more than the answers")
        sender.join()
        if end == "linger":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


command, arguments = sys.argv[2], sys.argv[3:]
if command == "ask":
    ask(arguments)
elif command == "hold":
    hold()
elif command == "until-reset":
    until_reset()
else:
    torture(*arguments)
