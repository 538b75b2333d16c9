// Cancellation of threads: each waiting call, a request that was pending before, the asynchronous type, a handler that
// runs during the sleep or in a call that does not wait, and one that jumps out of it. What a cancelled call held is released: the same sockets serve on.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static int listener, client, server, full, pair[2], epoll, cleaned;
static char much[1 << 20];
static sigjmp_buf back;

static void accepts(void) { accept(listener, 0, 0); }
static void polls_listener(void) { struct pollfd p = {listener, POLLIN, 0}; poll(&p, 1, -1); }
static void reads(void) { char b; (void)!read(client, &b, 1); }
static void readvs(void) { char b; struct iovec v = {&b, 1}; (void)!readv(client, &v, 1); }
static void recvs(void) { char b; recv(client, &b, 1, 0); }
static void in_time(int seconds) {
    struct timeval time = {.tv_sec = seconds};
    setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
}
static void recvs_in_time(void) { in_time(30); recvs(); }
static void recvmsgs(void) {
    char b;
    struct iovec v = {&b, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    recvmsg(client, &m, 0);
}
static void recvmmsgs(void) {
    char b;
    struct iovec v = {&b, 1};
    struct mmsghdr m = {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}};
    recvmmsg(client, &m, 1, 0, 0);
}
static void polls(void) { struct pollfd p = {client, POLLIN, 0}; poll(&p, 1, -1); }
static void ppolls(void) { struct pollfd p = {client, POLLIN, 0}; struct timespec t = {30, 0}; ppoll(&p, 1, &t, 0); }
static void polls_both(void) { struct pollfd p[2] = {{pair[0], POLLIN, 0}, {client, POLLIN, 0}}; poll(p, 2, -1); }
static void polls_many(void) {
    struct pollfd p[100];
    for (int i = 0; i < 100; i++) p[i] = (struct pollfd){client, POLLIN, 0};
    poll(p, 100, -1);
}
static void selects(void) { fd_set f; FD_ZERO(&f); FD_SET(client, &f); select(client + 1, &f, 0, 0, 0); }
static void pselects(void) { fd_set f; FD_ZERO(&f); FD_SET(client, &f); pselect(client + 1, &f, 0, 0, 0, 0); }
static void waits(void) { struct epoll_event v; epoll_wait(epoll, &v, 1, -1); }
static void waits_natively(void) {
    struct epoll_event v = {.events = EPOLLIN};
    int e = epoll_create1(EPOLL_CLOEXEC);
    cleaned = e;
    epoll_ctl(e, EPOLL_CTL_ADD, pair[0], &v);
    epoll_wait(e, &v, 1, -1);
}
static void splices(void) { splice(client, 0, pair[1], 0, 10, 0); }
static void splices_back(void) { splice(pair[0], 0, client, 0, 10, 0); }
static void writes(void) { for (;;) if (write(full, much, sizeof much) < 0) return; }
static void sends(void) { for (;;) if (send(full, much, sizeof much, 0) < 0) return; }
static void writevs(void) { struct iovec v = {much, sizeof much}; for (;;) if (writev(full, &v, 1) < 0) return; }
static void reads_pipe(void) { char b; (void)!read(pair[0], &b, 1); }

static const struct { const char *name; void (*call)(void); } calls[] = {
    {"accept", accepts}, {"poll of a listener", polls_listener}, {"read", reads}, {"readv", readvs}, {"recv", recvs},
    {"recv in time", recvs_in_time}, {"recvmsg", recvmsgs}, {"recvmmsg", recvmmsgs}, {"poll", polls}, {"ppoll", ppolls},
    {"poll with a pipe", polls_both}, {"poll of many", polls_many}, {"select", selects}, {"pselect", pselects},
    {"epoll_wait", waits}, {"epoll_wait of a pipe", waits_natively}, {"splice", splices}, {"splice of a pipe", splices_back},
    {"write", writes}, {"send", sends}, {"writev", writevs}, {"read of a pipe", reads_pipe},
};

enum { DEFERRED, ASYNCHRONOUS, PENDING, HANDLED, JUMPED, WAYS };
static const char *const ways[] = {"deferred", "asynchronous", "pending", "handled", "jumped"};
static int way;
static void (*current)(void);
static volatile int begun, go, tid, cancellable;

static void handler(int number) {
    int type;
    if (way == JUMPED) siglongjmp(back, number);
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
    cancellable += type == PTHREAD_CANCEL_ASYNCHRONOUS && current != reads_pipe;
    pthread_setcanceltype(type, &type);
}
static void cleanup(void *by) {
    // A cancelled thread's handlers make calls as good as any.
    char byte = 'c';
    (void)!write(*(int *)by, &byte, 1);
}
static void *thread(void *of) {
    static int null = -1;
    int type;
    tid = gettid();
    if (null < 0) null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (way == ASYNCHRONOUS) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
    pthread_cleanup_push(cleanup, &null);
    if (way == PENDING) {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &type);
        begun = 1;
        while (!go) usleep(1000);
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &type);
    }
    if (way != JUMPED || !sigsetjmp(back, 1)) {
        begun = 1;
        calls[(size_t)of].call();
    } else {
        // The next sleep of the thread, without the frames of the first, is cancelled as well.
        begun = 2;
        calls[(size_t)of].call();
    }
    pthread_cleanup_pop(0);
    return 0;
}
static char state(void) {
    char path[64], text[256] = "", *end;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *file = fopen(path, "re");
    if (!file) return 'S';
    (void)!fread(text, 1, sizeof text - 1, file);
    fclose(file);
    end = strrchr(text, ')');
    return end ? end[2] : 'S';
}
// Until the thread sleeps, not in the short sleeps between.
static void asleep(void) { for (int seen = 0; seen < 5; usleep(2000)) seen = state() == 'S' ? seen + 1 : 0; }
static int one(size_t at) {
    pthread_t of;
    void *result = 0;
    struct timespec time;
    begun = go = 0;
    current = calls[at].call;
    pthread_create(&of, 0, thread, (void *)at);
    while (begun != 1) usleep(1000);
    if (way != PENDING) asleep();
    if (way == HANDLED || way == JUMPED) {
        pthread_kill(of, SIGUSR1);
        while (way == JUMPED && begun != 2) usleep(1000);
        asleep();
    }
    pthread_cancel(of);
    go = 1;
    clock_gettime(CLOCK_REALTIME, &time);
    time.tv_sec += 20;
    if (pthread_timedjoin_np(of, &result, &time)) return printf("%s, %s: hangs\n", ways[way], calls[at].name), fflush(stdout), _exit(1), 0;
    if (calls[at].call == waits_natively) close(cleaned);
    in_time(0);
    return result == PTHREAD_CANCELED;
}
// A thread that may be cancelled anywhere makes calls by number.
static void *calls_by_number(void *of) {
    char byte;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
    begun = 1;
    if (of) for (;;) syscall(SYS_pause);
    for (;;) {
        syscall(SYS_sendto, client, "n", 1, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
        syscall(SYS_recvfrom, server, &byte, 1, MSG_DONTWAIT, 0, 0);
    }
}
static int by_number(void *of, int times) {
    int cancelled = 0;
    while (times--) {
        pthread_t one;
        void *result;
        begun = 0;
        pthread_create(&one, 0, calls_by_number, of);
        while (!begun) sched_yield();
        for (volatile int i = times * 7919 % 20011; i; i--);
        pthread_cancel(one);
        pthread_join(one, &result);
        cancelled += result == PTHREAD_CANCELED;
    }
    return cancelled;
}
// The same, in a call that sleeps.
static void *sleeps_by_number(void *of) {
    char byte;
    struct iovec v = {&byte, 1};
    struct pollfd p[2] = {{pair[0], POLLIN, 0}, {client, POLLIN, 0}};
    struct epoll_event event;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
    begun = 1;
    switch ((long)of) {
    case 0: syscall(SYS_read, pair[0], &byte, 1); break;
    case 1: syscall(SYS_readv, pair[0], &v, 1); break;
    case 2: syscall(SYS_recvfrom, client, &byte, 1, 0, 0, 0); break;
    case 3: syscall(SYS_ppoll, p, 2, 0, 0, 8); break;
    case 4: syscall(SYS_epoll_pwait, epoll, &event, 1, -1, 0, 8); break;
    case 5: syscall(SYS_accept4, listener, 0, 0, 0); break;
    case 6: syscall(SYS_splice, pair[0], 0, client, 0, 5, 0); break;
    }
    return 0;
}
static int slept_by_number(void) {
    int cancelled = 0;
    for (long at = 0; at < 7; at++) {
        pthread_t one;
        void *result;
        struct timespec time, moment = {0, 20000000};
        begun = 0;
        pthread_create(&one, 0, sleeps_by_number, (void *)at);
        while (!begun) sched_yield();
        // Most often it sleeps by then. If it does not, it is cancelled all the same.
        nanosleep(&moment, 0);
        pthread_cancel(one);
        clock_gettime(CLOCK_REALTIME, &time);
        time.tv_sec += 20;
        if (pthread_timedjoin_np(one, &result, &time)) return printf("by number, %ld: hangs\n", at), fflush(stdout), _exit(1), 0;
        cancelled += result == PTHREAD_CANCELED;
    }
    return cancelled;
}
// A thread that may be cancelled anywhere computes after a handler has jumped out of a call.
static volatile long computed;
static void *computes_after_a_jump(void *of) {
    int type;
    tid = gettid();
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
    if (sigsetjmp(back, 1) == 0) {
        begun = 1;
        calls[(size_t)of].call();
    } else {
        begun = 2;
        for (;;) computed++;
    }
    return 0;
}
static int computing(void) {
    int cancelled = 0;
    way = JUMPED;
    for (size_t at = 0; at < sizeof calls / sizeof *calls; at++) {
        pthread_t of;
        void *result = 0;
        struct timespec time;
        begun = 0;
        current = calls[at].call;
        pthread_create(&of, 0, computes_after_a_jump, (void *)at);
        while (begun != 1) usleep(1000);
        asleep();
        pthread_kill(of, SIGUSR1);
        while (begun != 2) usleep(1000);
        // Half of them are cancelled as early as possible.
        if (at % 2) usleep(5000);
        pthread_cancel(of);
        clock_gettime(CLOCK_REALTIME, &time);
        time.tv_sec += 20;
        if (pthread_timedjoin_np(of, &result, &time)) return printf("computes after %s: hangs\n", calls[at].name), fflush(stdout), _exit(1), 0;
        if (calls[at].call == waits_natively) close(cleaned);
        in_time(0);
        cancelled += result == PTHREAD_CANCELED;
    }
    return cancelled;
}
// A handler that makes a cancellation point, in a thread whose calls do not wait, while it is cancelled. Alone among the
// ways, it may have interrupted a call that began before anything was cancelled.
static volatile int in_handler, is_cancelled;
static void point(int number) {
    char byte = number;
    in_handler = 1;
    while (!is_cancelled) {}
    (void)!write(pair[1], &byte, 1);
}
static void *calls_without_waiting(void *of) {
    begun = 1;
    for (;;) {
        send(client, much, 100, MSG_DONTWAIT | MSG_NOSIGNAL);
        recv(server, much, 100, MSG_DONTWAIT);
    }
    return of;
}
static int in_handlers(int times) {
    struct sigaction action = {.sa_handler = point, .sa_flags = SA_RESTART}, before;
    int cancelled = 0;
    char byte;
    sigaction(SIGUSR1, &action, &before);
    for (int i = 0; i < times; i++) {
        pthread_t one;
        void *result;
        begun = in_handler = is_cancelled = 0;
        pthread_create(&one, 0, calls_without_waiting, 0);
        while (!begun) sched_yield();
        for (volatile int j = i * 7919 % 20011; j; j--);
        pthread_kill(one, SIGUSR1);
        while (!in_handler) sched_yield();
        pthread_cancel(one);
        is_cancelled = 1;
        pthread_join(one, &result);
        cancelled += result == PTHREAD_CANCELED;
    }
    sigaction(SIGUSR1, &before, 0);
    int flags = fcntl(pair[0], F_GETFL);
    fcntl(pair[0], F_SETFL, flags | O_NONBLOCK);
    while (read(pair[0], &byte, 1) > 0) {}
    fcntl(pair[0], F_SETFL, flags);
    return cancelled;
}
static int descriptors(void) {
    int count = 0;
    for (int i = 0; i < 1024; i++) count += fcntl(i, F_GETFD) >= 0;
    return count;
}
static void connected(struct sockaddr_in *to, int *one_end, int *other) {
    *one_end = socket(AF_INET, SOCK_STREAM, 0);
    connect(*one_end, (void *)to, sizeof *to);
    *other = accept(listener, 0, 0);
}
int main(void) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof name;
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    int other, before;
    char byte;
    alarm(110);
    sigaction(SIGUSR1, &action, 0);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener, (void *)&name, length);
    listen(listener, 5);
    getsockname(listener, (void *)&name, &length);
    connected(&name, &client, &server);
    connected(&name, &full, &other);
    (void)!pipe(pair);
    epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(epoll, EPOLL_CTL_ADD, client, &event);
    printf("%d in handlers\n", in_handlers(200));
    while (recv(server, much, sizeof much, MSG_DONTWAIT) > 0) {}
    way = DEFERRED;
    one(2);
    before = descriptors();
    for (way = 0; way < WAYS; way++)
        for (size_t at = 0; at < sizeof calls / sizeof *calls; at++) {
            // A handler with SA_RESTART ends these calls, on Linux as well.
            if (way == HANDLED && strstr("recv in time poll of a listener ppoll poll with a pipe poll of many pselect epoll_wait of a pipe", calls[at].name)) continue;
            if (way == HANDLED && (calls[at].call == writes || calls[at].call == sends || calls[at].call == writevs)) continue;
            if (!one(at)) printf("%s, %s: not cancelled\n", ways[way], calls[at].name), fflush(stdout);
        }
    printf("%d cancelled while they compute after a jump\n", computing());
    printf("%d descriptors\n", descriptors() - before);
    // A cancelled handler would unwind the call that it has interrupted. glibc before 2.41 permits that in its own.
    printf("%d handlers could be cancelled\n", getenv("SIETCH_SOCKETS") ? cancellable : 0);
    printf("%d by number\n", by_number(0, 500) + by_number(&way, 5));
    printf("%d asleep by number\n", slept_by_number());
    while (recv(server, much, sizeof much, MSG_DONTWAIT) > 0) {}
    // Nothing is left of them.
    (void)!write(server, "a", 1);
    printf("recv %zd\n", recv(client, &byte, 1, 0));
    (void)!write(client, "b", 1);
    printf("recv %zd\n", recv(server, &byte, 1, 0));
    (void)!write(pair[1], "b", 1);
    printf("splice %zd\n", splice(pair[0], 0, client, 0, 5, 0));
    printf("recv %zd\n", recv(server, &byte, 1, 0));
    int mine = socket(AF_INET, SOCK_STREAM, 0);
    printf("connect %d\n", connect(mine, (void *)&name, sizeof name));
    printf("accept %d\n", accept(listener, 0, 0) >= 0);
    close(client);
    printf("recv %zd\n", recv(server, &byte, 1, 0));
    return 0;
}
