"""An echo server over asyncio's streams, and its load.

Every connection sends, ends its side, and compares the reply.

usage: streams.py [--uvloop] serve PORT | streams.py [--uvloop] load PORT CONNECTIONS BYTES
"""

import asyncio
import hashlib
import random
import signal
import sys

served = 0


async def echo(reader, writer):
    global served
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    # The other side has ended; this one is still open.
    writer.write(b"end")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    served += 1


async def serve(port):
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await asyncio.start_server(echo, "127.0.0.1", port)
    await stop.wait()
    server.close()
    print("served", served, flush=True)


async def one(port, number, total):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    source = random.Random(number)
    sent, received = hashlib.sha256(), hashlib.sha256()

    async def send():
        left = total
        while left:
            data = source.randbytes(min(left, source.choice([1, 100, 10_000, 100_000])))
            sent.update(data)
            left -= len(data)
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    async def receive():
        left = total
        while left:
            data = await reader.read(min(left, 50_000))
            assert data, f"{number}: the end came {left} bytes early"
            received.update(data)
            left -= len(data)
        assert await reader.read() == b"end"

    await asyncio.wait_for(asyncio.gather(send(), receive()), 500)
    writer.close()
    await writer.wait_closed()
    assert sent.digest() == received.digest(), number


async def load(port, connections, total):
    await asyncio.gather(*(one(port, number, total) for number in range(connections)))
    print("all right")


arguments = sys.argv[1:]
if arguments[0] == "--uvloop":
    import uvloop

    uvloop.install()
    del arguments[0]
if arguments[0] == "serve":
    asyncio.run(serve(int(arguments[1])))
else:
    asyncio.run(load(*map(int, arguments[1:])))
