/*
 * Shares a token, a connection and requests among the C programs that the benchmarks compare with redlock.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void fail(const char *what)
{
    perror(what);
    _exit(69);
}

/* Writes 128 random bits as text. */
static void make_token(char token[33])
{
    unsigned char random[16];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        fail("getrandom");
    for (int i = 0; i < 16; i++)
        sprintf(token + 2 * i, "%02x", random[i]);
}

static int connect_to(const char *port)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/*
 * Sends a request of so many words, and reads so many lines. The second character of the first one must be among
 * `expected`. Returns that character.
 */
static char ask(int fd, int lines, const char *expected, int words, ...)
{
    char text[2048];
    int size = snprintf(text, sizeof text, "*%d\r\n", words);
    va_list list;
    va_start(list, words);
    while (words-- > 0) {
        const char *word = va_arg(list, const char *);
        size += snprintf(text + size, sizeof text - size, "$%zu\r\n%s\r\n", strlen(word), word);
        if (size >= (int)sizeof text)
            _exit(64);
    }
    va_end(list);
    if (write(fd, text, size) != size)
        fail("write");

    int have = 0, seen = 0;
    while (seen < lines) {
        ssize_t got = read(fd, text + have, sizeof text - have);
        if (got <= 0)
            fail("read");
        for (; got > 0; got--)
            seen += text[have++] == '\n';
    }
    if (strchr(expected, text[1]) == NULL) {
        fprintf(stderr, "unexpected reply %.*s", have, text);
        _exit(75);
    }
    return text[1];
}

/* Runs the command. Returns its status as a shell would report it. */
static int run(char **words)
{
    int status;
    pid_t child;
    if (posix_spawnp(&child, words[0], NULL, NULL, words, environ) != 0)
        fail(words[0]);
    if (waitpid(child, &status, 0) != child)
        fail("waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
