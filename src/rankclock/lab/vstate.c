/* Reading and changing a virtual clock (vclock.h says what it is). Also loaded by the harness, which steps clocks and
 * changes oscillators through the same functions as the daemons do: there is one writer, written once. */
#define _GNU_SOURCE
#include "vclock.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/timex.h>
#include <unistd.h>

/* A change takes effect a little after it is written, and its writer waits for that: every reader then sees it at the
 * same host instant, as under the kernel's own sequence lock. Without it a writer that is descheduled between reading
 * the time and publishing would let others read the old line after the new one has begun. */
#define EFFECT_DELAY_NS 20000 /* with 3 us, 1 change in 20 became visible late: cold caches, a first touch of a page */

#define PLAN_MAX 256              /* planned segments of a PLL or adjtime slew */
#define ADJTIME_Q48 (ONE_Q48 / 2000) /* adjtime slews at 500 ppm (Linux: MAX_TICKADJ) */
#define SHIFT_PLL 2               /* Linux kernel/time/ntp.c */
#define MAX_FREQ (500LL << 16)
#define MAX_PHASE_NS 500000000LL
#define MAX_ADJTIME_NS (2145 * NS_PER_S) /* what glibc takes */
#define PHASE_LIMIT_US 16000000LL /* maxerror at which Linux calls the clock unsynchronised */
#define READ_ONLY_STATUS \
  (STA_PPSSIGNAL | STA_PPSJITTER | STA_PPSWANDER | STA_PPSERROR | STA_CLOCKERR | STA_NANO | STA_MODE | STA_CLK)

static int (*real_clock_gettime)(clockid_t, struct timespec *);

static int64_t host_clock(clockid_t id) {
  struct timespec t;
  if (!real_clock_gettime) real_clock_gettime = (int (*)(clockid_t, struct timespec *))vc_next("clock_gettime");
  real_clock_gettime(id, &t);
  return ns_of(&t);
}

int64_t vc_host_ns(void) { return host_clock(CLOCK_MONOTONIC); }

/* Exact: between two ticks both coarse clocks stand still, and they differ by the kernel's own wall_to_monotonic. */
int64_t vc_host_realtime_minus_monotonic(void) {
  for (;;) {
    int64_t before = host_clock(CLOCK_MONOTONIC_COARSE);
    int64_t real = host_clock(CLOCK_REALTIME_COARSE);
    if (host_clock(CLOCK_MONOTONIC_COARSE) == before) return real - before;
  }
}

int64_t vc_host_of_kernel_stamp(int64_t ns) { return ns - vc_host_realtime_minus_monotonic(); }

/* The index of the segment that holds at a host instant: the last one that has begun; the oldest for earlier times. */
static uint32_t index_at(struct vc_state *s, uint32_t count, int64_t host_ns) {
  uint32_t high = count - 1;
  uint32_t low = count > VC_RING - VC_SPARE ? count - (VC_RING - VC_SPARE) : 0;
  if (vc_ring(s, high)->host0_ns <= host_ns) return high;
  while (low < high) {
    uint32_t middle = low + (high - low + 1) / 2;
    if (vc_ring(s, middle)->host0_ns <= host_ns) low = middle;
    else high = middle - 1;
  }
  return low;
}

void vc_segment_at(struct vc_state *s, int64_t host_ns, struct vc_segment *out) {
  uint64_t published;
  do { /* repeated only where somebody published meanwhile; a writer never leaves a half state to wait for */
    published = atomic_load_explicit(&s->published, memory_order_acquire);
    *out = *vc_ring(s, index_at(s, (uint32_t)published, host_ns));
    atomic_thread_fence(memory_order_acquire);
  } while (atomic_load_explicit(&s->published, memory_order_relaxed) != published);
}

/* REALTIME, MONOTONIC and RAW at a host instant: for the test that compares the harness's arithmetic with ours. */
void vc_read(struct vc_state *s, int64_t host_ns, int64_t out[3]) {
  struct vc_segment g;
  vc_segment_at(s, host_ns, &g);
  out[0] = vc_real(&g, host_ns);
  out[1] = vc_mono(&g, host_ns);
  out[2] = vc_raw(&g, host_ns);
}

static void set_rate(const struct vc_state *s, struct vc_segment *g) {
  if (s->frozen) {
    g->mono_q48 = -ONE_Q48;
    return;
  }
  int64_t adjusted = (int64_t)(((__int128)(g->tick - 10000) << 48) / 10000) +
                     (int64_t)(((__int128)g->freq << 32) / 1000000);
  g->mono_q48 = g->osc_q48 + adjusted + (int64_t)(((__int128)adjusted * g->osc_q48) >> 48) + g->slew_q48;
}

/* The same clocks, from a later instant on. */
static struct vc_segment rebased(const struct vc_segment *g, int64_t host_ns) {
  struct vc_segment r = *g;
  int64_t elapsed = host_ns - g->host0_ns;
  r.host0_ns = host_ns;
  r.raw0_ns = vc_raw(g, host_ns);
  r.raw_frac = vc_line_frac(g->raw_frac, g->osc_q48, elapsed);
  r.mono0_ns = vc_mono(g, host_ns);
  r.mono_frac = vc_line_frac(g->mono_frac, g->mono_q48, elapsed);
  r.left_q16 = g->left_q16 - (int64_t)(((__int128)elapsed * g->slew_q48) >> 32);
  return r;
}

static int64_t slewed_by_oscillator(int64_t rate_q48, const struct vc_segment *g) {
  return rate_q48 + (int64_t)(((__int128)rate_q48 * g->osc_q48) >> 48);
}

/* plan[0] is the segment that begins now; what the kernel would do by itself later is written down in advance, so that
 * no process has to be there to do it. Gives the number of segments. */
static unsigned plan_slew(struct vc_state *s, struct vc_segment *plan) {
  unsigned n = 0;
  if (plan[0].left_q16 == 0 || s->frozen) s->slew_mode = VC_SLEW_NONE;
  if (s->slew_mode == VC_SLEW_ADJTIME) {
    int64_t rate = slewed_by_oscillator(plan[0].left_q16 > 0 ? ADJTIME_Q48 : -ADJTIME_Q48, &plan[0]);
    plan[0].slew_q48 = rate;
    set_rate(s, &plan[0]);
    plan[1] = rebased(&plan[0], plan[0].host0_ns + (int64_t)(((__int128)plan[0].left_q16 << 32) / rate));
    n = 1;
  } else if (s->slew_mode == VC_SLEW_PLL) {
    /* Linux gives offset / 2^(SHIFT_PLL + constant) a second; many such seconds are one segment where it is slow. */
    double keep = 1 - ldexp(1, -(int)(SHIFT_PLL + s->constant));
    double period_s = fmax(1, ldexp(1, (int)(SHIFT_PLL + s->constant)) / 32);
    for (; n < PLAN_MAX - 1 && plan[n].left_q16 != 0; n++) {
      double give_ns = (double)plan[n].left_q16 / 65536 * (1 - pow(keep, period_s));
      plan[n].slew_q48 = llround(give_ns / (period_s * 1e9) * (double)ONE_Q48);
      set_rate(s, &plan[n]);
      if (plan[n].slew_q48 == 0) break;
      plan[n + 1] = rebased(&plan[n], plan[n].host0_ns + (int64_t)(period_s * 1e9));
    }
  }
  plan[n].slew_q48 = 0;
  if (n > 0) plan[n].left_q16 = 0;
  set_rate(s, &plan[n]);
  return n + 1;
}

static void publish(struct vc_state *s, uint32_t keep, const struct vc_segment *plan, unsigned n) {
  uint64_t published = atomic_load(&s->published);
  uint64_t generation = (published >> 32) + 1;
  if ((uint32_t)published != keep) { /* take back what was planned but has not begun, before writing over it */
    atomic_store_explicit(&s->published, generation << 32 | keep, memory_order_release);
    generation++;
    atomic_thread_fence(memory_order_seq_cst);
  }
  for (unsigned i = 0; i < n; i++) *vc_ring(s, keep + i) = plan[i];
  atomic_store_explicit(&s->published, generation << 32 | (keep + n), memory_order_release);
}

struct change {
  sigset_t signals;
  struct vc_segment plan[PLAN_MAX];
  uint32_t keep;
};

/* Locks the clock and gives the segment that the caller may edit: the clock as it will be when the change begins. */
static struct vc_segment *change_begin(struct vc_state *s, struct change *c) {
  sigset_t all;
  sigfillset(&all); /* a handler that adjusts the clock while we hold the lock would wait for itself */
  pthread_sigmask(SIG_BLOCK, &all, &c->signals);
  if (pthread_mutex_lock(&s->lock) == EOWNERDEAD) pthread_mutex_consistent(&s->lock); /* the state is always whole */
  vc_ring(s, (uint32_t)atomic_load(&s->published))->spare[0] = 0; /* its page is there before the time is read */
  int64_t host_ns = vc_host_ns() + EFFECT_DELAY_NS;
  uint32_t index = index_at(s, (uint32_t)atomic_load(&s->published), host_ns);
  c->keep = index + 1;
  c->plan[0] = rebased(vc_ring(s, index), host_ns);
  return &c->plan[0];
}

static void change_end(struct vc_state *s, struct change *c) {
  int64_t begins_ns = c->plan[0].host0_ns;
  publish(s, c->keep, c->plan, plan_slew(s, c->plan));
  if (vc_host_ns() > begins_ns) s->late++;
  pthread_mutex_unlock(&s->lock);
  pthread_sigmask(SIG_SETMASK, &c->signals, NULL);
  while (vc_host_ns() < begins_ns) {
  }
}

static void cancelled(struct vc_state *s, struct change *c) {
  pthread_mutex_unlock(&s->lock);
  pthread_sigmask(SIG_SETMASK, &c->signals, NULL);
}

/* What Linux forgets when the clock is stepped (ntp_clear). */
static void stepped(struct vc_state *s, struct vc_segment *g) {
  g->left_q16 = 0;
  s->slew_mode = VC_SLEW_NONE;
  s->status |= STA_UNSYNC;
  s->maxerror_us = s->esterror_us = PHASE_LIMIT_US;
  s->maxerror_host_ns = g->host0_ns;
  s->steps++;
}

void vc_set_real(struct vc_state *s, int64_t real_ns) {
  struct change c;
  struct vc_segment *g = change_begin(s, &c);
  g->wall_ns = real_ns + EFFECT_DELAY_NS - g->mono0_ns; /* as if it had been set when it was asked for */
  stepped(s, g);
  change_end(s, &c);
}

/* The harness's own step: nothing tells the kernel of it, as when a hypervisor moves the clock. */
void vc_step(struct vc_state *s, int64_t by_ns) {
  struct change c;
  change_begin(s, &c)->wall_ns += by_ns;
  s->steps++;
  change_end(s, &c);
}

void vc_set_oscillator(struct vc_state *s, int64_t osc_q48) {
  struct change c;
  change_begin(s, &c)->osc_q48 = osc_q48;
  change_end(s, &c);
}

void vc_set_frozen(struct vc_state *s, int frozen) {
  struct change c;
  change_begin(s, &c);
  s->frozen = frozen;
  change_end(s, &c);
}

int64_t vc_adjtime(struct vc_state *s, const int64_t *delta_ns) {
  struct change c;
  struct vc_segment *g = change_begin(s, &c);
  int64_t left_ns = s->slew_mode == VC_SLEW_ADJTIME ? g->left_q16 / 65536 : 0;
  if (!delta_ns) {
    cancelled(s, &c);
    return left_ns;
  }
  int64_t delta = *delta_ns > MAX_ADJTIME_NS ? MAX_ADJTIME_NS : *delta_ns < -MAX_ADJTIME_NS ? -MAX_ADJTIME_NS : *delta_ns;
  g->left_q16 = delta * 65536;
  s->slew_mode = VC_SLEW_ADJTIME;
  change_end(s, &c);
  return left_ns;
}

/* Linux ntp_update_offset: the offset is slewed away exponentially and also moves the frequency. */
static void pll_update(struct vc_state *s, struct vc_segment *g, int64_t offset_ns) {
  if (!(s->status & STA_PLL)) return;
  if (offset_ns > MAX_PHASE_NS) offset_ns = MAX_PHASE_NS;
  if (offset_ns < -MAX_PHASE_NS) offset_ns = -MAX_PHASE_NS;
  double elapsed_s = s->pll_host_ns ? (double)(g->host0_ns - s->pll_host_ns) / 1e9 : 0;
  if (s->status & STA_FREQHOLD) elapsed_s = 0;
  elapsed_s = fmin(floor(elapsed_s), ldexp(1, (int)(SHIFT_PLL + 1 + s->constant)));
  double rate_ns_s = (double)offset_ns * elapsed_s * ldexp(1, -2 * (int)(SHIFT_PLL + 2 + s->constant));
  g->freq += (int64_t)llround(rate_ns_s * 65.536); /* 1 ns/s = 1e-3 ppm, ppm * 65536 */
  if (g->freq > MAX_FREQ) g->freq = MAX_FREQ;
  if (g->freq < -MAX_FREQ) g->freq = -MAX_FREQ;
  s->pll_host_ns = g->host0_ns;
  g->left_q16 = offset_ns * 65536;
  s->slew_mode = VC_SLEW_PLL;
}

static int64_t maxerror_us(const struct vc_state *s, int64_t host_ns) {
  int64_t grown = s->maxerror_us + (host_ns - s->maxerror_host_ns) / NS_PER_S * 500; /* MAXFREQ, once a second */
  return grown < PHASE_LIMIT_US ? grown : PHASE_LIMIT_US;
}

static void set_status(struct vc_state *s, const struct timex *tx, int64_t host_ns) {
  int64_t status = (s->status & READ_ONLY_STATUS) | (tx->status & ~READ_ONLY_STATUS);
  if (!(s->status & STA_PLL) && (status & STA_PLL)) s->pll_host_ns = host_ns;
  s->status = status;
}

/* The order and the limits are those of Linux process_adjtimex_modes. */
static void apply_modes(struct vc_state *s, struct vc_segment *g, const struct timex *tx) {
  unsigned modes = tx->modes;
  if (modes & ADJ_STATUS) set_status(s, tx, g->host0_ns);
  if (modes & ADJ_NANO) s->status |= STA_NANO;
  if (modes & ADJ_MICRO) s->status &= ~STA_NANO;
  if (modes & ADJ_FREQUENCY) {
    g->freq = tx->freq;
    if (!s->is_phc && g->freq > MAX_FREQ) g->freq = MAX_FREQ;
    if (!s->is_phc && g->freq < -MAX_FREQ) g->freq = -MAX_FREQ;
    s->pll_host_ns = g->host0_ns;
  }
  if (modes & ADJ_MAXERROR) {
    s->maxerror_us = tx->maxerror;
    s->maxerror_host_ns = g->host0_ns;
  }
  if (modes & ADJ_ESTERROR) s->esterror_us = tx->esterror;
  if (modes & ADJ_TIMECONST) {
    s->constant = tx->constant + (s->status & STA_NANO ? 0 : 4);
    s->constant = s->constant < 0 ? 0 : s->constant > 10 ? 10 : s->constant;
  }
  if ((modes & ADJ_TAI) && tx->constant >= 0) s->tai_s = tx->constant;
  if (modes & ADJ_OFFSET) pll_update(s, g, s->status & STA_NANO ? tx->offset : tx->offset * 1000);
  if (modes & ADJ_TICK) g->tick = tx->tick;
  if (modes & (ADJ_TICK | ADJ_FREQUENCY | ADJ_OFFSET)) s->adjustments++;
}

static void fill(const struct vc_state *s, const struct vc_segment *g, int64_t host_ns, struct timex *tx) {
  int nano = (s->status & STA_NANO) != 0;
  int64_t real_ns = vc_real(g, host_ns);
  int64_t left_ns = s->slew_mode == VC_SLEW_PLL ? rebased(g, host_ns).left_q16 / 65536 : 0;
  struct timespec t = timespec_of(real_ns);
  tx->offset = nano ? left_ns : left_ns / 1000;
  tx->freq = g->freq;
  tx->maxerror = maxerror_us(s, host_ns);
  tx->esterror = s->esterror_us;
  tx->status = (int)s->status | (maxerror_us(s, host_ns) >= PHASE_LIMIT_US ? STA_UNSYNC : 0);
  tx->constant = s->constant;
  tx->precision = 1;
  tx->tolerance = MAX_FREQ;
  tx->time.tv_sec = t.tv_sec;
  tx->time.tv_usec = nano ? t.tv_nsec : t.tv_nsec / 1000;
  tx->tick = g->tick;
  tx->tai = (int)s->tai_s;
}

static int invalid(const struct timex *tx) {
  if ((tx->modes & ADJ_TICK) && (tx->tick < 9000 || tx->tick > 11000)) return 1;
  if (tx->modes & ADJ_SETOFFSET)
    return tx->time.tv_usec < 0 || tx->time.tv_usec >= ((tx->modes & ADJ_NANO) ? NS_PER_S : NS_PER_S / 1000);
  return 0;
}

int vc_adjtimex(struct vc_state *s, struct timex *tx) {
  struct vc_segment now;
  if ((tx->modes & ADJ_OFFSET_SINGLESHOT) == ADJ_OFFSET_SINGLESHOT) { /* the old adjtime(2), in us */
    int64_t delta_ns = tx->offset * 1000;
    tx->offset = vc_adjtime(s, tx->modes == ADJ_OFFSET_SS_READ ? NULL : &delta_ns) / 1000;
  } else if (tx->modes) {
    if (invalid(tx)) {
      errno = EINVAL;
      return -1;
    }
    struct change c;
    struct vc_segment *g = change_begin(s, &c);
    if (tx->modes & ADJ_SETOFFSET) {
      g->wall_ns += tx->time.tv_sec * NS_PER_S + tx->time.tv_usec * ((tx->modes & ADJ_NANO) ? 1 : 1000);
      stepped(s, g);
    }
    apply_modes(s, g, tx);
    if (tx->modes & (ADJ_SETOFFSET | ADJ_FREQUENCY | ADJ_TICK | ADJ_OFFSET)) change_end(s, &c);
    else cancelled(s, &c); /* no rate has changed: no segment */
  }
  int64_t host_ns = vc_host_ns();
  vc_segment_at(s, host_ns, &now);
  long offset = tx->offset;
  fill(s, &now, host_ns, tx);
  if ((tx->modes & ADJ_OFFSET_SINGLESHOT) == ADJ_OFFSET_SINGLESHOT) tx->offset = offset;
  if (tx->status & (STA_UNSYNC | STA_CLOCKERR)) return TIME_ERROR;
  return tx->status & STA_INS ? TIME_INS : tx->status & STA_DEL ? TIME_DEL : TIME_OK;
}

static void init_lock(struct vc_state *s) {
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&s->lock, &a);
}

int vc_create(const char *path, int64_t host_ns, int64_t real_ns, int64_t mono_ns, int64_t raw_ns, int64_t osc_q48,
              int is_phc) {
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return errno;
  fchmod(fd, 0666); /* daemons that give up root still read their time from it */
  int error = ftruncate(fd, VC_FILE_SIZE) ? errno : 0;
  close(fd);
  if (error) return error;
  struct vc_state *s = vc_map(path, 0);
  if (!s) return EIO;
  s->ring = VC_RING;
  s->status = STA_UNSYNC;
  s->maxerror_us = s->esterror_us = PHASE_LIMIT_US;
  s->maxerror_host_ns = host_ns;
  s->constant = 2 + 4;
  s->is_phc = is_phc;
  init_lock(s);
  struct vc_segment g = {.host0_ns = host_ns, .raw0_ns = raw_ns, .mono0_ns = mono_ns, .wall_ns = real_ns - mono_ns,
                         .osc_q48 = osc_q48, .tick = 10000};
  set_rate(s, &g);
  *vc_ring(s, 0) = g;
  atomic_store(&s->published, 1);
  s->magic = VC_MAGIC;
  munmap(s, VC_FILE_SIZE);
  return 0;
}

/* A process that was told to use a virtual clock and cannot must not run on the host's time unnoticed. */
struct vc_state *vc_map(const char *path, int must) {
  struct stat st;
  struct vc_state *s = MAP_FAILED;
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd >= 0) {
    if (fstat(fd, &st) == 0 && (size_t)st.st_size == VC_FILE_SIZE)
      s = mmap(NULL, VC_FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
  }
  if (s != MAP_FAILED && (!must || s->magic == VC_MAGIC)) return s;
  if (!must) return NULL;
  dprintf(2, "rankclock lab: no virtual clock at %s: %s\n", path, strerror(errno));
  _exit(127);
}
