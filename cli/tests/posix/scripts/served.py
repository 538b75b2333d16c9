# Which sockets a program has: a connection, and whether it is in the kernel's tables.
import os, socket, sys

listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
client = socket.create_connection(("127.0.0.1", port))
server, _ = listener.accept()
client.sendall(b"question")
print(server.recv(100))
server.sendall(b"answer")
print(client.recv(100))
known = sum(":%04X" % port in line and " 01 " in line for line in open("/proc/net/tcp"))
print("ends in the kernel's table:", known)
if len(sys.argv) > 1:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, sys.argv[0]])
