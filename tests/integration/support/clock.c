// A wall clock that is wrong by the microseconds in a file, to be preloaded into a server. If a second number in the file isn't
// 0, the clock stands still, and shows the first number as the time since 1970. The clock that counts from the start of the
// machine stays right, as on a host whose time of day is wrong. It may be called within malloc, so it makes only system calls.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *numbers(void) {
    static const volatile int64_t *both;
    if (!both) {
        const char *path = getenv("CLOCK_OFFSET_FILE");
        int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *shared = fd < 0 ? MAP_FAILED : mmap(0, 16, PROT_READ, MAP_SHARED, fd, 0);
        if (fd >= 0)
            close(fd);
        if (shared == MAP_FAILED)
            abort();
        both = shared;
    }
    return both;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t right = numbers()[1] ? 0 : now->tv_sec * INT64_C(1000000000) + now->tv_nsec;
        int64_t all = right + numbers()[0] * 1000;
        now->tv_sec = all / 1000000000;
        now->tv_nsec = all % 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec precise;
    int result = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return result;
}

time_t time(time_t *out) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (out)
        *out = precise.tv_sec;
    return precise.tv_sec;
}
