// Starts a program by those calls whose arguments are a list in the source, with few arguments and
// with many.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int child(void) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid) waitpid(pid, 0, 0);
    return pid == 0;
}

int main(int count, char **arguments) {
    char *program = arguments[1], *made[] = {"A=1", NULL};
    char *base = strrchr(program, '/') + 1;
    if (child()) execl(program, base, (char *)NULL);
    if (child()) execl(program, base, "1", "2", "3", (char *)NULL);
    if (child()) execl(program, base, "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", (char *)NULL);
    if (child()) execle(program, base, "1", (char *)NULL, made);
    if (child()) execle(program, base, "1", "2", "3", "4", "5", "6", "7", "8", "9", (char *)NULL, made);
    setenv("PATH", ".", 1);
    if (child()) execlp(base, base, "1", "2", "3", "4", "5", "6", "7", (char *)NULL);
    int failed = execl("/no/such/program", "a", "b", "c", "d", "e", "f", "g", "h", (char *)NULL);
    printf("failed %d\n", failed);
    return 0;
}
