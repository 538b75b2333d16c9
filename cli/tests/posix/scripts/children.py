# Children of subprocess, which makes them by vfork and closes what they inherit: the connection, the
# selector and the listener of this process go on as before.
import selectors, socket, subprocess

listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
selector = selectors.DefaultSelector()
selector.register(server, selectors.EVENT_READ)
for how in ({}, {"close_fds": True}, {"close_fds": True, "pass_fds": [client.fileno()]}, {"shell": True}):
    for _ in range(3):
        status = subprocess.run("true", **how).returncode
        client.sendall(b"x")
        ready = len(selector.select(2))
        received = server.recv(1)
        server.sendall(b"y")
        with socket.create_connection(listener.getsockname()) as next:
            accepted, _ = listener.accept()
            next.sendall(b"z")
            print(status, ready, received, client.recv(1), accepted.recv(1), flush=True)
            accepted.close()
