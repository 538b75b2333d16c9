// A listener's name is free when the call that closed it returns, whichever call that was. A kernel
// socket, created past the library, can be bound to it at once.
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static long raw(long number, long a, long b, long c) {
    long answer;
#if defined(__x86_64__)
    __asm__ volatile("syscall" : "=a"(answer) : "0"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    answer = x0;
#endif
    return answer;
}

static int null;

static void by_close(int fd) { close(fd); }
static void by_close_range(int fd) { close_range(fd, fd, 0); }
static void by_closefrom(int fd) {
    dup2(fd, 500);
    close(fd);
    closefrom(500);
}
static void by_dup2(int fd) {
    dup2(null, fd);
    close(fd);
}
static void by_dup3(int fd) {
    dup3(null, fd, O_CLOEXEC);
    close(fd);
}

static void try(const char *what, void (*closed)(int)) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    name.sin_port = htons(7072);
    int taken = 0, failed = 0;
    for (int i = 0; i < 200; i++) {
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        failed += bind(listener, (void *)&name, sizeof name) || listen(listener, 5);
        closed(listener);
        int probe = raw(SYS_socket, AF_INET, SOCK_STREAM, 0);
        taken += raw(SYS_bind, probe, (long)&name, sizeof name) != 0;
        raw(SYS_close, probe, 0, 0);
    }
    printf("%s: %d not bound, %d times taken\n", what, failed, taken);
}

int main(void) {
    null = open("/dev/null", O_RDONLY);
    try("close", by_close);
    try("close_range", by_close_range);
    try("closefrom", by_closefrom);
    try("dup2", by_dup2);
    try("dup3", by_dup3);
    return 0;
}
