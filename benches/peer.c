/*
 * Measures the least that a lock around a command can cost: connect, SET NX PX, spawn, wait, EVAL compare-and-delete.
 * No renewal, no waiting, no signals: a yardstick for the benchmark, not a tool.
 *
 *     peer PORT KEY COMMAND [ARG]...
 */
#include "redis.h"

static const char release[] =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

int main(int argc, char **argv)
{
    char token[33];
    if (argc < 4)
        return 64;
    const char *key = argv[2];
    make_token(token);
    int fd = connect_to(argv[1]);
    ask(fd, 1, "O", 6, "SET", key, token, "NX", "PX", "30000"); /* +OK */
    int status = run(argv + 3);
    ask(fd, 1, "1", 5, "EVAL", release, "1", key, token); /* :1 */
    return status;
}
