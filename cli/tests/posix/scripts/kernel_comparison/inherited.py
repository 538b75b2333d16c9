# A socket that is bound in one program, and listened on in two others that it starts.
import os, socket, subprocess, sys

if len(sys.argv) > 1:
    listener = socket.socket(fileno=int(sys.argv[1]))
    listener.listen(16)
    print("listening", flush=True)
    for _ in range(2):
        connection, _ = listener.accept()
        connection.sendall(connection.recv(100) * 2)
        connection.close()
    sys.exit()

bound = socket.socket()
bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
bound.bind(("127.0.0.1", 0))
os.set_inheritable(bound.fileno(), True)
command = [sys.executable, __file__, str(bound.fileno())]
children = [subprocess.Popen(command, pass_fds=[bound.fileno()], stdout=subprocess.PIPE) for _ in range(2)]
for child in children:
    print(child.stdout.readline())
payload = b"x" * 100
for _ in range(4):
    client = socket.create_connection(bound.getsockname())
    client.sendall(payload)
    answer = b""
    while len(answer) < 200:
        answer += client.recv(1000)
    print(len(answer), client.getpeername() == bound.getsockname())
for child in children:
    print(child.wait())
