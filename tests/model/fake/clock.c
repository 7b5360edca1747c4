/* A clock for redis-server that is stopped until a test sets it: the microseconds since 1970 in the
   file that SIMULATED_CLOCK names. Loaded with LD_PRELOAD. The monotonic
   clock, by which the server sleeps and measures, is left alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Called before main, and from within malloc, so it uses only system calls. */
static int64_t simulated(void) {
  static volatile int64_t *clock;
  if (!clock) {
    const char *path = getenv("SIMULATED_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(0, sizeof *clock, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) _exit(97);
    close(file);
    clock = page;
  }
  return *clock;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  int64_t at = simulated();
  now->tv_sec = at / 1000000;
  now->tv_usec = at % 1000000;
  return 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
  if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE) return (int)syscall(SYS_clock_gettime, id, now);
  int64_t at = simulated();
  now->tv_sec = at / 1000000;
  now->tv_nsec = at % 1000000 * 1000;
  return 0;
}

time_t time(time_t *now) {
  time_t at = simulated() / 1000000;
  if (now) *now = at;
  return at;
}
