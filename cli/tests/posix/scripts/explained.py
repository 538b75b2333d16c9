# Connects to a server on the kernel's sockets. What the library says on standard error is part of the output.
import os, socket, subprocess, sys
os.dup2(1, 2)
SERVER = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); s.accept()"
environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, env={**environment, "SIETCH_SOCKETS": ""})
port = int(server.stdout.readline())
socket.create_connection(("127.0.0.1", port)).close()
server.wait()
timestamps = socket.socket()
timestamps.setsockopt(socket.SOL_SOCKET, 29, 1)
print("port", port)
