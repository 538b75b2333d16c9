// A program with AddressSanitizer: it starts, also by exec, its connections are served, and its mistakes are found.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof name;
    char text[8] = "", *few = malloc(4);
    int status, listener = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener, (void *)&name, length);
    listen(listener, 1);
    getsockname(listener, (void *)&name, &length);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    printf("connect %d\n", connect(client, (void *)&name, length));
    int server = accept(listener, 0, 0);
    printf("write %zd\n", write(client, "hello", 5));
    printf("recv %zd %s\n", recv(server, text, 5, MSG_WAITALL), text);
    fflush(stdout);
    if (!fork()) {
        dup2(open("/dev/null", O_WRONLY), 2);
        _exit(read(open("/proc/self/exe", O_RDONLY), few, sizeof text) < 0);
    }
    wait(&status);
    printf("found %d\n", WIFEXITED(status) && WEXITSTATUS(status) != 0);
    fflush(stdout);
    free(few);
    if (count == 1) execl("/proc/self/exe", arguments[0], "again", (char *)0);
    return 0;
}
