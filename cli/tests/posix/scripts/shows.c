// Says whether LD_PRELOAD names anything, and its arguments.
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
    char *list = getenv("LD_PRELOAD");
    printf("LD_PRELOAD %s", list ? list : "none");
    for (int at = 1; at < count; at++) printf(" %s", arguments[at]);
    printf("\n");
    return 0;
}
