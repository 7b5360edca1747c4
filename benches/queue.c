/*
 * Measures the least that handing a lock over through Redis can cost. A client that finds the lock held appends its
 * token to a list, and waits for an entry in its own list. A client that releases the lock gives it to the first token
 * and wakes that client. A hand-over is five commands: GET, LPOP, SET and RPUSH in one script, and the BLPOP that they answer.
 *
 * The lock's key always holds the token of the current holder, and is never absent between two holders. So only one
 * client holds the lock, until the lease ends, because nothing renews it. A waiter that dies in the queue would get the
 * lock in its turn, and its lists stay: a yardstick for the benchmark, not a tool.
 *
 *     queue PORT KEY COMMAND [ARG]...
 */
#include "redis.h"

static const char acquire[] =
    "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 30000) then return 1 end "
    "redis.call('RPUSH', KEYS[2], ARGV[1]) "
    "return 0";

static const char release[] =
    "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end "
    "local first = redis.call('LPOP', KEYS[2]) "
    "if not first then return redis.call('DEL', KEYS[1]) end "
    "redis.call('SET', KEYS[1], first, 'PX', 30000) "
    "redis.call('RPUSH', KEYS[1] .. ':' .. first, 'yours') "
    "return 1";

int main(int argc, char **argv)
{
    char token[33], queue[256], own[256];
    if (argc < 4)
        return 64;
    const char *key = argv[2];
    make_token(token);
    snprintf(queue, sizeof queue, "%.200s:queue", key);
    snprintf(own, sizeof own, "%.200s:%s", key, token);
    int fd = connect_to(argv[1]);
    if (ask(fd, 1, "01", 6, "EVAL", acquire, "2", key, queue, token) == '0')
        ask(fd, 5, "2", 3, "BLPOP", own, "0"); /* the list's name and its entry, each with its length */
    int status = run(argv + 3);
    ask(fd, 1, "1", 6, "EVAL", release, "2", key, queue, token);
    return status;
}
