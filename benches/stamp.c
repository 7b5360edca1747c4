/*
 * Writes a line with the times of its own start and end, in nanoseconds.
 * With a GATE (a FIFO) it ends when the gate is closed or gone.
 *
 *     stamp FILE [GATE]
 */
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int main(int count, char **arguments)
{
    long long began = now();
    char line[64];
    int file = count >= 2 ? open(arguments[1], O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
    if (file == -1)
        return 64;
    int gate = count == 3 ? open(arguments[2], O_RDONLY) : -1;
    if (gate != -1)
        while (read(gate, line, sizeof line) > 0)
            ;
    int length = snprintf(line, sizeof line, "%lld %lld\n", began, now());
    return write(file, line, length) == length ? 0 : 74;
}
