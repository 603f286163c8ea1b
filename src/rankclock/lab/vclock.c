/* The time functions of libc, on this node's own clock (preloaded with LD_PRELOAD; vclock.h says what a clock is).
 *
 * With RANKCLOCK_VCLOCK=FILE set, REALTIME, TAI, MONOTONIC, MONOTONIC_RAW and BOOTTIME are the node's, and adjusting
 * them adjusts the node's: the host's clock is not reachable from here. Without it everything passes through.
 * Deadlines that a program gives in its own time are turned into the host's, or a Python thread would wait for ever
 * after its node's MONOTONIC was slewed. Relative waits run at the host's rate: an error of ppm.
 *
 * Not covered: static programs and those that bypass libc (Go, Rust's futex waits), a function looked up in a handle of
 * libc.so.6 itself, file mtimes, TFD_TIMER_CANCEL_ON_SET, timer_settime, leap seconds.
 */
#define _GNU_SOURCE
#include "vclock.h"

#include <dlfcn.h>
#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/timex.h>
#include <unistd.h>

struct vc_state *vc_system;

void *vc_next(const char *name) {
  void *f = dlsym(RTLD_NEXT, name);
  if (!f) {
    dprintf(2, "rankclock lab: libc has no %s\n", name);
    _exit(127);
  }
  return f;
}

#define NEXT(f) \
  static __typeof__(&f) next; \
  if (!next) next = (__typeof__(&f))vc_next(#f)

__attribute__((constructor)) static void start(void) {
  const char *path = getenv("RANKCLOCK_VCLOCK");
  if (path && *path) {
    vc_system = vc_map(path, 1);
    vc_phc_init();
  }
}

/* ---- reading ---- */

/* The node's clock at a host instant; 0 where the clock is none of ours. */
static int read_clock(clockid_t id, int64_t host_ns, int64_t *value) {
  struct vc_segment g;
  struct vc_state *s = vc_is_phc_clock(id) ? vc_phc : vc_system;
  if (!s) return 0;
  vc_segment_at(s, host_ns, &g);
  switch (s == vc_phc && id < 0 ? CLOCK_REALTIME : id) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_ALARM:
    case CLOCK_REALTIME_COARSE: *value = vc_real(&g, host_ns); return 1;
    case CLOCK_TAI: *value = vc_real(&g, host_ns) + s->tai_s * NS_PER_S; return 1;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_BOOTTIME_ALARM:
    case CLOCK_BOOTTIME: *value = vc_mono(&g, host_ns); return 1;
    case CLOCK_MONOTONIC_RAW: *value = vc_raw(&g, host_ns); return 1;
    default: return 0; /* CPU time of processes and threads */
  }
}

int clock_gettime(clockid_t id, struct timespec *t) {
  NEXT(clock_gettime);
  int64_t value;
  if ((!vc_system && !vc_phc) || !read_clock(id, vc_host_ns(), &value)) return next(id, t);
  *t = timespec_of(value);
  return 0;
}

int clock_getres(clockid_t id, struct timespec *t) {
  NEXT(clock_getres);
  if (!vc_is_phc_clock(id)) return next(id, t);
  if (t) *t = (struct timespec){0, 1};
  return 0;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
  NEXT(gettimeofday);
  int result = next(tv, zone);
  if (!vc_system || !tv || result < 0) return result;
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  *tv = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
  return 0;
}

time_t time(time_t *out) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  if (out) *out = t.tv_sec;
  return t.tv_sec;
}

int timespec_get(struct timespec *t, int base) {
  if (base != TIME_UTC) return 0;
  clock_gettime(CLOCK_REALTIME, t);
  return base;
}

/* ---- setting ---- */

/* The clock that a caller may set: as on a real node only root may. */
static struct vc_state *settable(clockid_t id) {
  struct vc_state *s = id == CLOCK_REALTIME ? vc_system : vc_is_phc_clock(id) ? vc_phc : NULL;
  if (!s) {
    errno = id < 0 ? ENODEV : id == CLOCK_REALTIME ? EPERM : EINVAL; /* the host's own clock is never set from a lab */
    return NULL;
  }
  if (geteuid() == 0) return s;
  errno = EPERM;
  return NULL;
}

int clock_settime(clockid_t id, const struct timespec *t) {
  struct vc_state *s = settable(id);
  if (!s) return -1;
  if (t->tv_nsec < 0 || t->tv_nsec >= NS_PER_S || t->tv_sec < 0) {
    errno = EINVAL;
    return -1;
  }
  vc_set_real(s, ns_of(t));
  return 0;
}

int settimeofday(const struct timeval *tv, const struct timezone *zone) {
  if (!tv) {
    (void)zone; /* the kernel's time zone is the host's: left alone */
    return 0;
  }
  struct timespec t = {tv->tv_sec, tv->tv_usec * 1000};
  return clock_settime(CLOCK_REALTIME, &t);
}

int stime(const time_t *t) {
  struct timespec full = {*t, 0};
  return clock_settime(CLOCK_REALTIME, &full);
}

int clock_adjtime(clockid_t id, struct timex *tx) {
  struct vc_state *s = id == CLOCK_REALTIME ? vc_system : vc_is_phc_clock(id) ? vc_phc : NULL;
  if (s && tx->modes && tx->modes != ADJ_OFFSET_SS_READ && !settable(id)) return -1;
  if (!s) {
    errno = id < 0 ? ENODEV : EOPNOTSUPP;
    return -1;
  }
  return s == vc_phc ? vc_phc_adjtime(tx) : vc_adjtimex(s, tx);
}

int adjtimex(struct timex *tx) {
  NEXT(adjtimex);
  return vc_system ? clock_adjtime(CLOCK_REALTIME, tx) : next(tx);
}

int ntp_adjtime(struct timex *tx) { return adjtimex(tx); }
int __adjtimex(struct timex *tx) { return adjtimex(tx); }

int ntp_gettimex(struct ntptimeval *out) {
  struct timex tx = {.modes = 0};
  int state = adjtimex(&tx);
  *out = (struct ntptimeval){.time = tx.time, .maxerror = tx.maxerror, .esterror = tx.esterror, .tai = tx.tai};
  return state;
}

int adjtime(const struct timeval *delta, struct timeval *before) {
  NEXT(adjtime);
  if (!vc_system) return next(delta, before);
  if (delta && !settable(CLOCK_REALTIME)) return -1;
  int64_t delta_ns = delta ? delta->tv_sec * NS_PER_S + delta->tv_usec * 1000 : 0;
  int64_t left_ns = vc_adjtime(vc_system, delta ? &delta_ns : NULL);
  if (before) *before = (struct timeval){left_ns / NS_PER_S, left_ns % NS_PER_S / 1000};
  return 0;
}

/* ---- waiting until an instant ---- */

/* The host's CLOCK_MONOTONIC at which a clock of this node will read `t`, if its rate stays and nobody steps it. */
static struct timespec host_deadline(clockid_t id, const struct timespec *t) {
  struct vc_segment g;
  int64_t host_ns = vc_host_ns(), now_ns;
  if (!read_clock(id, host_ns, &now_ns)) return *t;
  vc_segment_at(vc_system, host_ns, &g);
  __int128 wait_ns = ((__int128)(ns_of(t) - now_ns) << 48) / (ONE_Q48 + g.mono_q48);
  int64_t deadline_ns = host_ns + (int64_t)wait_ns;
  return timespec_of(deadline_ns < 0 ? 0 : deadline_ns);
}

static int ours(clockid_t id) {
  return vc_system && (id == CLOCK_REALTIME || id == CLOCK_MONOTONIC || id == CLOCK_BOOTTIME || id == CLOCK_TAI);
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *t, struct timespec *left) {
  NEXT(clock_nanosleep);
  if (!(flags & TIMER_ABSTIME) || !ours(id)) return next(id, flags, t, left);
  struct timespec host = host_deadline(id, t);
  return next(CLOCK_MONOTONIC, flags, &host, left);
}

int sem_clockwait(sem_t *sem, clockid_t id, const struct timespec *t) {
  NEXT(sem_clockwait);
  if (!ours(id)) return next(sem, id, t);
  struct timespec host = host_deadline(id, t);
  return next(sem, CLOCK_MONOTONIC, &host);
}

int sem_timedwait(sem_t *sem, const struct timespec *t) { return sem_clockwait(sem, CLOCK_REALTIME, t); }

int pthread_mutex_clocklock(pthread_mutex_t *m, clockid_t id, const struct timespec *t) {
  NEXT(pthread_mutex_clocklock);
  if (!ours(id)) return next(m, id, t);
  struct timespec host = host_deadline(id, t);
  return next(m, CLOCK_MONOTONIC, &host);
}

int pthread_mutex_timedlock(pthread_mutex_t *m, const struct timespec *t) {
  return pthread_mutex_clocklock(m, CLOCK_REALTIME, t);
}

int pthread_cond_clockwait(pthread_cond_t *c, pthread_mutex_t *m, clockid_t id, const struct timespec *t) {
  NEXT(pthread_cond_clockwait);
  if (!ours(id)) return next(c, m, id, t);
  struct timespec host = host_deadline(id, t);
  return next(c, m, CLOCK_MONOTONIC, &host);
}

int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t) {
  /* Which clock the condition variable was made for: glibc keeps it in bit 1 of __wrefs (nptl/pthread_cond_common.c). */
  return pthread_cond_clockwait(c, m, c->__data.__wrefs & 2 ? CLOCK_MONOTONIC : CLOCK_REALTIME, t);
}

static clockid_t clock_of_timerfd(int fd) {
  char path[64], line[64];
  int id = -1;
  snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
  FILE *f = fopen(path, "re");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "clockid: %d", &id) == 1) break;
  if (f) fclose(f);
  return id;
}

int timerfd_settime(int fd, int flags, const struct itimerspec *value, struct itimerspec *before) {
  NEXT(timerfd_settime);
  clockid_t id = (flags & TFD_TIMER_ABSTIME) && (value->it_value.tv_sec || value->it_value.tv_nsec)
                     ? clock_of_timerfd(fd) : -1;
  if (!ours(id)) return next(fd, flags, value, before);
  /* Never, as systemd's programs arm a timer to hear of steps: in ns it would overflow into the past. */
  if (value->it_value.tv_sec > INT64_MAX / NS_PER_S / 2) return next(fd, flags, value, before);
  struct itimerspec host = *value;
  host.it_value = host_deadline(id, &value->it_value);
  if (id == CLOCK_REALTIME) host.it_value = timespec_of(ns_of(&host.it_value) + vc_host_realtime_minus_monotonic());
  if (host.it_value.tv_sec == 0 && host.it_value.tv_nsec == 0) host.it_value.tv_nsec = 1; /* long past; 0 would disarm */
  return next(fd, flags, &host, before);
}
