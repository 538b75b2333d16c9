// SIGSEGV and SIGBUS of a program that has a connection: its handlers, its dispositions and its
// death are those of the kernel. `dispositions inherited` prints what exec has left of them.
#define _GNU_SOURCE
#include <errno.h>
#include <libgen.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

static int client, server;
static char *none, *beyond, *alternate;
static sigjmp_buf back;
static volatile int runs;

static void connects(void) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener, (void *)&name, length);
    listen(listener, 5);
    getsockname(listener, (void *)&name, &length);
    client = socket(AF_INET, SOCK_STREAM, 0);
    connect(client, (void *)&name, length);
    server = accept(listener, 0, 0);
}

static void report(const char *when, int signal) {
    struct sigaction now;
    sigaction(signal, 0, &now);
    printf("%s: %s flags %x mask %lx\n", when,
           now.sa_handler == SIG_DFL ? "default" : now.sa_handler == SIG_IGN ? "ignored" : "a handler",
           now.sa_flags & ~0x04000000, *(long *)&now.sa_mask);
}

// A bad buffer, which must cause no signal.
static void fails(void) {
    send(server, "text", 4, 0);
    int answer = read(client, none, 4);
    printf("read %d %s, ", answer, strerror(errno));
    answer = write(client, none, 4);
    printf("write %d %s, runs %d\n", answer, strerror(errno), runs);
}

static void say(int number, siginfo_t *information, void *context) {
    sigset_t blocked;
    char here;
    runs++;
    sigprocmask(SIG_BLOCK, 0, &blocked);
    printf("signal %d code %d address %s blocked %lx before %lx stack %s\n", number, information->si_code,
           information->si_addr == none ? "none" : information->si_addr == beyond ? "beyond" : "other",
           *(long *)&blocked, *(long *)&((ucontext_t *)context)->uc_sigmask,
           &here >= alternate && &here < alternate + (64 << 10) ? "alternate" : "own");
    fflush(stdout);
}
static void jumps(int number, siginfo_t *information, void *context) {
    say(number, information, context);
    siglongjmp(back, 1);
}
static void maps(int number, siginfo_t *information, void *context) {
    say(number, information, context);
    mmap(none, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}
static void plain(int number) { runs++, siglongjmp(back, number); }

static void install(int signal, void *handler, int flags, int masked) {
    struct sigaction new = {.sa_sigaction = handler, .sa_flags = flags};
    sigemptyset(&new.sa_mask);
    if (masked) sigaddset(&new.sa_mask, masked);
    sigaction(signal, &new, 0);
}

static void default_death(void) { *none = 1; }
static void default_bus(void) { *beyond = 1; }
static void killed(void) { kill(getpid(), SIGSEGV), puts("not reached"); }
static void killed_bus(void) { pthread_kill(pthread_self(), SIGBUS), puts("not reached"); }
static void ignored_death(void) { signal(SIGSEGV, SIG_IGN), *none = 1; }
static void ignored(void) { signal(SIGSEGV, SIG_IGN), kill(getpid(), SIGSEGV), report("ignored", SIGSEGV); }
static void blocked_death(void) {
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGSEGV), sigprocmask(SIG_BLOCK, &set, 0);
    install(SIGSEGV, say, SA_SIGINFO, 0);
    *none = 1;
}
static void handled(void) {
    install(SIGSEGV, jumps, SA_SIGINFO, SIGUSR1);
    install(SIGBUS, jumps, SA_SIGINFO | SA_NODEFER, 0);
    report("handled", SIGSEGV), report("handled", SIGBUS);
    fails();
    for (int i = 0; i < 3; i++) {
        if (!sigsetjmp(back, 1)) *none = 1;
        if (!sigsetjmp(back, 1)) *beyond = 1;
        fails();
    }
}
static void on_a_stack_of_its_own(void) {
    stack_t stack = {.ss_sp = alternate, .ss_size = 64 << 10};
    sigaltstack(&stack, 0);
    install(SIGSEGV, jumps, SA_SIGINFO | SA_ONSTACK, 0);
    if (!sigsetjmp(back, 1)) *none = 1;
    fails();
    // Without the flag: where the program is.
    install(SIGSEGV, jumps, SA_SIGINFO, 0);
    if (!sigsetjmp(back, 1)) *none = 1;
    fails();
}
static int deep(volatile char *above) {
    volatile char much[4096];
    much[0] = above[0];
    return deep(much) + much[0];
}
static void overflows(void) {
    stack_t stack = {.ss_sp = alternate, .ss_size = 64 << 10};
    sigaltstack(&stack, 0);
    install(SIGSEGV, jumps, SA_SIGINFO | SA_ONSTACK, 0);
    if (!sigsetjmp(back, 1)) deep(alternate);
    fails();
    signal(SIGSEGV, SIG_DFL);
    deep(alternate);
}
static void handled_once(void) {
    install(SIGSEGV, jumps, SA_SIGINFO | SA_RESETHAND, 0);
    fails();
    report("before", SIGSEGV);
    if (!sigsetjmp(back, 1)) *none = 1;
    report("after", SIGSEGV);
    fails();
    *none = 1;
}
static void repaired(void) {
    install(SIGSEGV, maps, SA_SIGINFO, 0);
    *none = 1;
    printf("written %d\n", *none);
}
static void by_other_calls(void) {
    printf("was default: %d\n", signal(SIGSEGV, plain) == SIG_DFL);
    report("signal", SIGSEGV);
    if (!sigsetjmp(back, 1)) *none = 1;
    fails();
    printf("was plain: %d\n", sigset(SIGSEGV, SIG_DFL) == plain);
    report("sigset", SIGSEGV);
    sysv_signal(SIGBUS, plain);
    report("sysv_signal", SIGBUS);
    if (!sigsetjmp(back, 1)) *beyond = 1;
    report("sysv_signal", SIGBUS);
    siginterrupt(SIGBUS, 1);
    struct sigaction bad = {.sa_flags = -1};
    printf("bad signal %d\n", sigaction(99, &bad, 0));
}
static void sent_with_a_value(void) {
    install(SIGSEGV, say, SA_SIGINFO, 0);
    sigqueue(getpid(), SIGSEGV, (union sigval){.sival_int = 5});
    kill(getpid(), SIGSEGV);
}
static void forked(void) {
    install(SIGSEGV, jumps, SA_SIGINFO, 0);
    fflush(stdout);
    if (fork() == 0) {
        report("child", SIGSEGV);
        fails();
        if (!sigsetjmp(back, 1)) *none = 1;
        signal(SIGSEGV, SIG_DFL);
        fails();
        fflush(stdout);
        *none = 1;
    }
    int status;
    wait(&status);
    printf("child: signal %d\n", WTERMSIG(status));
}
static const char *self;
static void starts(void) {
    install(SIGSEGV, jumps, SA_SIGINFO, 0);
    signal(SIGBUS, SIG_IGN);
    fflush(stdout);
    execl(self, self, "inherited", (char *)0);
}

#define EACH(name) {#name, name}
static struct { const char *name; void (*run)(void); } all[] = {
    EACH(fails), EACH(default_death), EACH(default_bus), EACH(killed), EACH(killed_bus), EACH(ignored), EACH(ignored_death),
    EACH(blocked_death), EACH(handled), EACH(on_a_stack_of_its_own), EACH(overflows), EACH(handled_once), EACH(repaired),
    EACH(by_other_calls), EACH(sent_with_a_value), EACH(forked), EACH(starts),
};

int main(int count, char **arguments) {
    self = arguments[0];
    setvbuf(stdout, 0, _IOLBF, 0);
    if (count > 1) {
        report("exec", SIGSEGV), report("exec", SIGBUS);
        connects();
        report("exec", SIGSEGV), report("exec", SIGBUS);
        return 0;
    }
    // Cores are written where the machine writes them, or beside the program, and removed there.
    struct rlimit limit = {8 << 20, 8 << 20}, cores = {64 << 20, 64 << 20};
    setrlimit(RLIMIT_STACK, &limit), setrlimit(RLIMIT_CORE, &cores);
    chdir(dirname(strdup(self)));
    int file = memfd_create("empty", 0);
    alternate = mmap(0, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    none = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    beyond = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    for (int i = 0; i < sizeof all / sizeof *all; i++) {
        fflush(stdout);
        if (fork() == 0) {
            connects();
            all[i].run();
            fflush(stdout);
            _exit(0);
        }
        int status;
        wait(&status);
        unlink("core");
        printf("%s: %s %d core %d\n", all[i].name, WIFSIGNALED(status) ? "signal" : "exit",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), WIFSIGNALED(status) && WCOREDUMP(status));
    }
    return 0;
}
