// A program that gives a connection to a library opened with RTLD_DEEPBIND, as PHP gives its own to
// its extensions. cc -DLIBRARY -shared -fPIC: the library. Without: the program, whose argument is
// the library.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#ifdef LIBRARY
void use(int connection) {
    char bytes[9];
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    int named = getpeername(connection, (void *)&peer, &length);
    long received = recv(connection, bytes, sizeof bytes, MSG_DONTWAIT);
    printf("getpeername %d family %d recv %ld\n", named, peer.sin_family, received);
}
#else
int main(int count, char **arguments) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&name, length) || listen(listener, 5)) return 1;
    getsockname(listener, (void *)&name, &length);
    if (connect(client, (void *)&name, length)) return 2;
    int server = accept(listener, 0, 0);
    send(client, "hello", 5, 0);
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_DEEPBIND);
    if (!library) return puts(dlerror());
    ((void (*)(int))dlsym(library, "use"))(server);
    // The program's own namespace, by the other call.
    library = dlmopen(LM_ID_BASE, arguments[1], RTLD_NOW | RTLD_DEEPBIND);
    if (!library) return puts(dlerror());
    send(client, "hello", 5, 0);
    ((void (*)(int))dlsym(library, "use"))(server);
    return 0;
}
#endif
