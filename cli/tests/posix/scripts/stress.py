"""Threads and processes that share connections and wait for them in every way, from a seed.

usage: stress.py SEED SECONDS STALL

Each round makes connections to itself, forks processes, and gives each end of each connection a
sender and a receiver, which are threads of any of the processes. Each actor waits as the seed
says: a blocking call, poll, select, or an epoll (level, edge, one-shot, within another, polled
many times before each sleep), or several receivers share one loop. Every byte is compared.

Counters in shared memory record the progress of each actor. A stall is a time in which no counter
moves although the processor was available: a thread that waited for a processor (`schedstat`) is
no evidence, unless that goes on for as long as STARVED says. A poke (a check of the connections without
waiting) then shows whether data was there.
"""
import errno, mmap, os, random, select, signal, socket, struct, sys, threading, time

STALL = float(sys.argv[3])  # seconds without any progress, on a machine that gives this process the processor
STARVED = 60  # times STALL: a thread that waits for a processor for so long has lost it for another reason
WAYS = ["blocking", "timeout", "poll", "select", "level", "edge", "once", "nested", "polls", "shared"]
POLLS = 700  # in vain: more than after which the library leaves a connection to the kernel
PATTERN = bytes((i * 31 + (i >> 8)) & 255 for i in range(1 << 16)) * 5


def piece(at, length):
    return PATTERN[at & 0xffff:(at & 0xffff) + length]


class Waiter:
    """Waits until a socket is ready for one thing."""

    def __init__(self, way, sock, out):
        self.way, self.sock, self.fd, self.out = way, sock, sock.fileno(), out
        self.polled = self.epoll = self.outer = None
        bit = select.EPOLLOUT if out else select.EPOLLIN
        if way == "poll":
            self.polled = select.poll()
            self.polled.register(self.fd, select.POLLOUT if out else select.POLLIN)
        if way in ("level", "edge", "once", "nested", "polls"):
            self.epoll = select.epoll()
            self.bits = bit | {"edge": select.EPOLLET, "once": select.EPOLLONESHOT}.get(way, 0)
            self.epoll.register(self.fd, self.bits)
        if way == "nested":
            self.outer = select.epoll()
            self.outer.register(self.epoll.fileno(), select.EPOLLIN)

    def wait(self):
        if self.way == "poll":
            self.polled.poll()
        elif self.way == "select":
            sets = ([], [self.fd], []) if self.out else ([self.fd], [], [])
            select.select(*sets)
        elif self.way == "nested":
            self.outer.poll()
            self.epoll.poll(0)
        elif self.way == "once":
            self.epoll.poll()
            self.epoll.modify(self.fd, self.bits)
        elif self.way == "polls":
            any(self.epoll.poll(0) for _ in range(POLLS)) or self.epoll.poll()
        else:
            self.epoll.poll()

    def close(self):
        for one in (self.outer, self.epoll):
            if one:
                one.close()


def flags_of(way):
    return 0 if way in ("blocking", "timeout") else socket.MSG_DONTWAIT


def send(sock, way, total, random_, count):
    sent, flags = 0, flags_of(way)
    waiter = Waiter(way, sock, True) if flags else None
    while sent < total:
        data = piece(sent, min(total - sent, random_.choice([1, 100, 5000, 65536])))
        try:
            sent += sock.send(data, flags)
            count(sent)
        except (BlockingIOError, TimeoutError):
            if waiter:
                waiter.wait()
        if random_.random() < 0.02:
            time.sleep(random_.random() * 0.003)
    sock.shutdown(socket.SHUT_WR)
    if waiter:
        waiter.close()


def check(got, data):
    if data != piece(got, len(data)):
        raise SystemExit("at byte %d something else arrived" % got)


def receive(sock, way, total, random_, count):
    got, flags = 0, flags_of(way)
    waiter = Waiter(way, sock, False) if flags else None
    while True:
        try:
            data = sock.recv(random_.choice([1, 300, 20000, 200000]), flags)
        except (BlockingIOError, TimeoutError):
            if waiter:
                waiter.wait()
            continue
        if not data:
            break
        check(got, data)
        got += len(data)
        count(got)
    if got != total:
        raise SystemExit("%d bytes of %d" % (got, total))
    if waiter:
        waiter.close()


def receive_all(jobs, random_):
    """One loop for several: a level-triggered epoll with few events. Some loops never sleep."""
    loop, by, got, polls = select.epoll(), {}, {}, random_.random() < 0.3
    for sock, total, count in jobs:
        loop.register(sock.fileno(), select.EPOLLIN)
        by[sock.fileno()], got[sock.fileno()] = (sock, total, count), 0
    while by:
        for fd, _ in loop.poll(0 if polls else None, maxevents=random_.choice([1, 2, 16])):
            sock, total, count = by[fd]
            try:
                data = sock.recv(random_.choice([1, 300, 20000]), socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            if data:
                check(got[fd], data)
                got[fd] += len(data)
                count(got[fd])
            else:
                if got[fd] != total:
                    raise SystemExit("%d bytes of %d" % (got[fd], total))
                loop.unregister(fd)
                del by[fd]
    loop.close()


def pairs(number):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    made = []
    for _ in range(number):
        one = socket.create_connection(listener.getsockname())
        made.append((one, listener.accept()[0]))
    listener.close()
    return made


def act(actors, counters, seed):
    """The threads of one process."""
    failed, threads, shared = [], [], []

    def guard(run, *arguments):
        try:
            run(*arguments)
        except BaseException as error:
            failed.append(error)
            print("failed:", repr(error), flush=True)
            os._exit(1)

    for index, sock, sends, way, total in actors:
        def count(value, index=index):
            struct.pack_into("Q", counters, 8 * index, value + 1)
        random_ = random.Random(seed * 1000 + index)
        if way == "shared" and not sends:
            shared.append((sock, total, count))
            continue
        way = "poll" if way == "shared" else way
        target = send if sends else receive
        threads.append(threading.Thread(target=guard, args=(target, sock, way, total, random_, count)))
    if shared:
        threads.append(threading.Thread(target=guard, args=(receive_all, shared, random.Random(seed))))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def queued(children):
    """Seconds that each thread of the children has waited for a processor, and whether it waits."""
    threads = {}
    for pid in children:
        try:
            for thread in os.listdir("/proc/%d/task" % pid):
                task = "/proc/%d/task/%s/" % (pid, thread)
                with open(task + "schedstat") as times, open(task + "stat") as stat:
                    # A thread that waits is not counted before it runs.
                    threads[thread] = int(times.read().split()[1]) / 1e9, stat.read().rsplit(")")[1][1] == "R"
        except OSError:
            continue  # it has ended meanwhile, or this kernel does not count
    return threads


def stalled(children, counters, made, ends):
    """Waits until all children have ended. Returns the error, if any."""
    seen, since = bytes(counters), time.monotonic()
    alive, waited, moved = dict(children), {}, since
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            alive.pop(pid, None)
            if status:
                return "a process ended with %d" % status
            continue
        began = time.monotonic()
        time.sleep(0.02)
        late = time.monotonic() - began
        now = bytes(counters)
        if now != seen:
            seen, since, waited = now, time.monotonic(), {}
            moved = since
        elif late > 0.2:
            since += late  # others have the machine
        elif time.monotonic() - since > STALL / 2 and not waited:
            waited = queued(alive)
        elif time.monotonic() - since > STALL:
            threads = queued(alive)
            ready = [thread for thread, (time_, waits) in threads.items()
                     if waits or time_ - waited.get(thread, (0.0, False))[0] > STALL / 10]
            if ready and time.monotonic() - moved < STARVED * STALL:
                since, waited = time.monotonic(), {}  # a thread was ready and others had the processor
                continue
            lying = []
            for end in ends:
                poll = select.poll()
                poll.register(end.fileno(), select.POLLIN | select.POLLOUT)
                lying.append(poll.poll(0))
            return "nothing moves: counters %s, ready %s, threads %s" % (
                struct.unpack("%dQ" % (len(seen) // 8), seen), lying, threads)
    return None


def round_(seed, cpus):
    random_ = random.Random(seed)
    os.sched_setaffinity(0, random_.choice([cpus, cpus, [random_.choice(cpus)]]))
    made = pairs(random_.randint(1, 4))
    processes, actors = random_.randint(1, 3), []
    for pair in made:
        timeout = random_.random() < 0.3
        for end, other in (pair, pair[::-1]):
            end.settimeout(5.0 if timeout else None)
            total = random_.choice([1, 1000, 200_000, 1_000_000])
            ways = [way for way in WAYS if way != ("blocking" if timeout else "timeout")]
            for sends, sock in ((True, end), (False, other)):
                actors.append((len(actors), sock, sends, random_.choice(ways), total))
    counters = mmap.mmap(-1, 8 * len(actors))
    dealt = [[] for _ in range(processes)]
    for actor in actors:
        random_.choice(dealt).append(actor)
    children = {}
    for mine in dealt:
        pid = os.fork()
        if pid == 0:
            act(mine, counters, seed)
            os._exit(0)
        children[pid] = mine
    wrong = stalled(children, counters, made, [end for pair in made for end in pair])
    if wrong:
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        ways = [(index, "sends" if sends else "receives", way, total) for index, _, sends, way, total in actors]
        raise SystemExit("seed %d: %s\n%s" % (seed, wrong, ways))
    for pair in made:
        for end in pair:
            end.close()


seed, until = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
cpus, rounds = sorted(os.sched_getaffinity(0)), 0
while rounds == 0 or time.monotonic() < until:
    round_(seed + rounds, cpus)
    rounds += 1
print("all right: %d rounds from seed %d" % (rounds, seed))
