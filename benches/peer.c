/*
 * The least that a lock around a command can cost: connect, SET NX PX, spawn, wait, EVAL
 * compare-and-delete. No renewal, no waiting, no signals: a yardstick for the benchmark, not a tool.
 *
 *     peer PORT KEY COMMAND [ARG]...
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const char release[] =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

static void fail(const char *what)
{
    perror(what);
    _exit(69);
}

/* Sends a request and reads until a whole line has come; its first bytes must be as expected. */
static void ask(int fd, const char *request, int size, const char *expected)
{
    char reply[256];
    size_t have = 0;
    if (write(fd, request, size) != size)
        fail("write");
    do {
        ssize_t got = read(fd, reply + have, sizeof reply - have);
        if (got <= 0)
            fail("read");
        have += got;
    } while (memchr(reply, '\n', have) == NULL);
    if (strncmp(reply, expected, strlen(expected)) != 0) {
        fprintf(stderr, "peer: unexpected reply %.*s", (int)have, reply);
        _exit(75);
    }
}

int main(int argc, char **argv)
{
    unsigned char random[16];
    char token[33], request[1024];
    int one = 1, status, size;
    pid_t child;

    if (argc < 4)
        return 64;
    const char *key = argv[2];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);

    if (getrandom(random, sizeof random, 0) != sizeof random)
        fail("getrandom");
    for (int i = 0; i < 16; i++)
        sprintf(token + 2 * i, "%02x", random[i]);

    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);

    size = snprintf(request, sizeof request,
                    "*6\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$32\r\n%s\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n30000\r\n",
                    strlen(key), key, token);
    ask(fd, request, size, "+OK");

    if (posix_spawnp(&child, argv[3], NULL, NULL, argv + 3, environ) != 0)
        fail(argv[3]);
    if (waitpid(child, &status, 0) != child)
        fail("waitpid");

    size = snprintf(request, sizeof request,
                    "*5\r\n$4\r\nEVAL\r\n$%zu\r\n%s\r\n$1\r\n1\r\n$%zu\r\n%s\r\n$32\r\n%s\r\n",
                    strlen(release), release, strlen(key), key, token);
    ask(fd, request, size, ":1");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
