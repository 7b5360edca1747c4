// Works under a lock in the chaos tests. Leaves a sign of life each millisecond in a file that the tests share, and runs given
// commands at given times.
//
//   beater --for MS [--limit N] [--exit N]          beats that long; N as --slots has it, 0 for --shared
//          [--ignore-term | --linger MS]            at SIGTERM goes on, or goes on for a while
//          [--fork MS]                              has a descendant, in a session of its own, that beats too
//          [--do MS LABEL COMMAND]...               runs COMMAND then, and notes its status

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PERIODS 1000
#define GAP 5000000     // beats further apart belong to different periods, ns
#define LONGEST 120000  // longest life, in case the test doesn't end it, ms
#define PATIENCE 20000  // longest wait for its commands after its own end, ms

struct period { int64_t first, last; };
struct beats {
    int64_t pid, is_descendant, limit, ends, count;
    char names[64], fences[64];
    struct period periods[PERIODS];
};

struct task { int64_t at, began; const char *label, *command; pid_t pid; };

static struct task tasks[8];
static int task_count;
static volatile sig_atomic_t asked;

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_BOOTTIME, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

static struct beats *open_beats(int is_descendant, int64_t limit) {
    char path[512];
    snprintf(path, sizeof path, "%s/beats/%s/%d", variable("CHAOS_DIR"), variable("CHAOS_RUN"), (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct beats)))
        exit(99);
    struct beats *beats = mmap(0, sizeof *beats, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (beats == MAP_FAILED)
        exit(99);
    close(fd);
    beats->pid = getpid();
    beats->is_descendant = is_descendant;
    beats->limit = limit;
    snprintf(beats->names, sizeof beats->names, "%s", variable("REDLOCK_NAME"));
    snprintf(beats->fences, sizeof beats->fences, "%s", variable("REDLOCK_FENCE"));
    return beats;
}

static void beat(struct beats *beats, int64_t time) {
    struct period *latest = beats->count ? &beats->periods[beats->count - 1] : NULL;
    if (latest && (time - latest->last <= GAP || beats->count == PERIODS)) {
        latest->last = time;
        return;
    }
    beats->periods[beats->count] = (struct period){time, time};
    beats->count++;
}

static void note(const struct task *task, int64_t end, int status) {
    char line[400], path[512];
    int length = snprintf(line, sizeof line, "%s %d %lld %lld %d %s %s\n", task->label, (int)getpid(),
        (long long)task->began, (long long)end, status, variable("REDLOCK_NAME"), variable("REDLOCK_FENCE"));
    snprintf(path, sizeof path, "%s/tasks/%s", variable("CHAOS_DIR"), variable("CHAOS_RUN"));
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, line, (size_t)length) != length)
        exit(99);
    close(fd);
}

static void start(struct task *task) {
    task->began = now();
    task->pid = fork();
    if (task->pid)
        return;
    signal(SIGTERM, SIG_DFL);
    execl("/bin/sh", "sh", "-c", task->command, (char *)0);
    _exit(127);
}

static void look_after(struct task *task, int64_t age) {
    int status;
    if (!task->began && age >= task->at)
        start(task);
    else if (task->pid > 0 && waitpid(task->pid, &status, WNOHANG) == task->pid) {
        task->pid = 0;
        note(task, now(), WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
}

static int is_over(void) {
    static int turn;
    static char path[512];
    struct stat stats;
    if (turn++ % 32)
        return 0;
    if (!*path)
        snprintf(path, sizeof path, "%s/over", variable("CHAOS_DIR"));
    // A killed test leaves no file, but its directory is gone.
    return stat(path, &stats) == 0 || stat(variable("CHAOS_DIR"), &stats) != 0;
}

static void note_term(int signal) { (void)signal; asked = 1; }

static int64_t number(const char *text) { return text ? atoll(text) : 0; }

int main(int count, char **words) {
    int64_t began = now(), lasts = 0, limit = 1, linger = -1, forks = 0;
    int status = 0, ignores = 0;
    for (int n = 1; n < count; n++) {
        const char *next = words[n + 1];
        if (!strcmp(words[n], "--ignore-term")) { ignores = 1; continue; }
        if (!strcmp(words[n], "--for")) lasts = number(next);
        else if (!strcmp(words[n], "--limit")) limit = number(next);
        else if (!strcmp(words[n], "--exit")) status = (int)number(next);
        else if (!strcmp(words[n], "--linger")) linger = number(next);
        else if (!strcmp(words[n], "--fork")) forks = number(next);
        else if (!strcmp(words[n], "--do") && n + 3 < count && task_count < 8) {
            tasks[task_count++] = (struct task){number(next) * 1000000, 0, words[n + 2], words[n + 3], 0};
            n += 2;
        } else return 64;
        n++;
    }
    struct beats *beats = open_beats(0, limit);
    beat(beats, began);
    if (ignores)
        signal(SIGTERM, SIG_IGN);
    else if (linger >= 0)
        signal(SIGTERM, note_term);
    if (forks && fork() == 0) {
        setsid();
        beats = open_beats(1, limit);
        task_count = 0;
        lasts = forks;
        status = 0;
    }
    if (lasts > LONGEST)
        lasts = LONGEST;
    int64_t ends = began + lasts * 1000000, asked_at = 0;
    beats->ends = ends;
    for (int64_t next = began;;) {
        int64_t time = now();
        if (asked && !asked_at)
            asked_at = time;
        int busy = 0;
        for (int n = 0; n < task_count; n++)
            busy |= tasks[n].pid > 0;
        if (asked_at && time - asked_at >= linger * 1000000)
            return 0;
        if ((time >= ends && (!busy || time >= ends + PATIENCE * INT64_C(1000000))) || is_over())
            return status;
        beat(beats, time);
        for (int n = 0; n < task_count; n++)
            look_after(&tasks[n], time - began);
        next = next + 1000000 > time ? next + 1000000 : time + 1000000;
        struct timespec then = {next / 1000000000, next % 1000000000};
        clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &then, 0);
    }
}
