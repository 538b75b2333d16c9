# A listener that is shut down refuses at once, and listens again after a further listen.
import socket

refused = served = 0
for round in range(200):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 9000 + round))
    listener.listen(5)
    listener.shutdown(socket.SHUT_RD if round % 2 else socket.SHUT_RDWR)
    with socket.socket() as client:
        refused += client.connect_ex(listener.getsockname()) != 0
    listener.listen(5)
    with socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as accepted:
        client.sendall(b"x")
        served += accepted.recv(1) == b"x"
    listener.close()
print(f"refused {refused} served {served}")
