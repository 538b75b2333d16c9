// syscall(): io_uring is not there under Sietch; everything else is the kernel's, with six
// arguments and its errno. Then a call with addresses that no program has.
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void unmapped(const char *when, void *none) {
    int polled = poll(none, 1, 0);
    printf("%s: poll %d %s\n", when, polled, strerror(errno));
    int selected = select(1, none, 0, 0, 0);
    printf("%s: select %d %s\n", when, selected, strerror(errno));
    int raw = syscall(SYS_ppoll, none, 1, none, 0, 0);
    printf("%s: ppoll %d %s\n", when, raw, strerror(errno));
}

int main(void) {
    char parameters[120] = {0};
    long ring = syscall(SYS_io_uring_setup, 4, parameters);
    printf("io_uring_setup %s\n", ring < 0 && errno == ENOSYS ? "ENOSYS" : "another answer");
    errno = 0;
    char *page = (char *)syscall(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    page[4095] = 1;
    printf("mmap %d errno %d\n", page[4095], errno);
    long bad = syscall(SYS_mmap, 0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 1L);
    printf("sixth argument %ld %s\n", bad, strerror(errno));
    bad = syscall(100000);
    printf("no such call %ld %s\n", bad, strerror(errno));
    struct pollfd *nothing = (void *)8;
    volatile long far = -16;
    struct pollfd *beyond = (void *)far;
    int polled = poll(nothing, 1, 0);
    printf("poll %d %s\n", polled, strerror(errno));
    polled = poll(beyond, 1, 0);
    printf("poll %d %s\n", polled, strerror(errno));
    int selected = select(1, (void *)8, 0, 0, 0);
    printf("select %d %s\n", selected, strerror(errno));
    // In every program, with kernel sockets, the kernel judges unmapped addresses.
    void *none = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event event = {.events = EPOLLOUT};
    socklen_t length = sizeof name;
    int client = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);
    unmapped("pending", none);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener, (void *)&name, length);
    listen(listener, 5);
    getsockname(listener, (void *)&name, &length);
    connect(client, (void *)&name, length);
    close(accept(listener, 0, 0));
    close(client);
    close(listener);
    int datagrams = socket(AF_INET, SOCK_DGRAM, 0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, datagrams, &event);
    unmapped("closed", none);
    printf("epoll_wait %d %s\n", epoll_wait(epoll, none, 1, 0), strerror(errno));
    return 0;
}
