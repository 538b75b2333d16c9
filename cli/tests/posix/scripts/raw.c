// syscall(): io_uring is not there under Sietch; everything else is the kernel's, with six
// arguments and its errno. Then a call with addresses that no program has.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

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
    return 0;
}
