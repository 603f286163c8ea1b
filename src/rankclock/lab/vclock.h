/* The state of one virtual clock, and the arithmetic on it.
 *
 * A clock is a file that every process of a node maps. It holds a ring of segments; each says how the node's
 * clocks run from one host instant on, until the next segment begins. "Host instant" is always the host's
 * CLOCK_MONOTONIC in ns: it is never stepped, and a kernel packet stamp (host CLOCK_REALTIME) converts to it exactly.
 *
 * Why a ring and not one current line: a packet stamp is converted when the packet is read, which may be long after a
 * step or a change of rate. Converted with the line of that moment it is wrong by the whole step, or by
 * (reading - stamp) * slew; converted with the segment of the stamp it is exact. The harness reads past truth from it.
 *
 * Why no lock for readers: a new segment is written beside the published ones and becomes visible with one atomic
 * store of `published`. A process that is killed at any instruction leaves a whole, older state.
 *
 * All arithmetic is on integers, so that the harness (lab/clock.py) computes the same values to the last nanosecond:
 *     value(h) = value0 + (h - host0) + floor(((h - host0) * rate_q48 + frac_q48) / 2^48)
 * where rate_q48 is (rate - 1) * 2^48. The fraction is carried from segment to segment, so nothing is rounded away.
 */
#ifndef RANKCLOCK_VCLOCK_H
#define RANKCLOCK_VCLOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>

#define NS_PER_S 1000000000LL
#define ONE_Q48 (1LL << 48)

#define VC_MAGIC 0x314b4352u /* "RCK1", little endian */
#define VC_RING 32768u       /* segments kept: an hour of ptp4l at 8 updates a second. Sparse: only used pages exist */
#define VC_SPARE 512u        /* the oldest ones are not read: a writer may be at them (a plan is at most 256 long) */

struct vc_segment {
  int64_t host0_ns;  /* from this host instant on */
  int64_t raw0_ns;   /* CLOCK_MONOTONIC_RAW at host0: the oscillator, nothing else */
  int64_t raw_frac;  /* its fraction of a ns, Q48 */
  int64_t mono0_ns;  /* CLOCK_MONOTONIC at host0: the oscillator as steered by tick, frequency and kernel slew */
  int64_t mono_frac;
  int64_t wall_ns;   /* CLOCK_REALTIME - CLOCK_MONOTONIC: changed by steps only, as in Linux */
  int64_t osc_q48;   /* rate of RAW - 1 */
  int64_t mono_q48;  /* rate of MONOTONIC - 1 */
  int64_t freq;      /* as adjtimex gives it: ppm * 65536 */
  int64_t tick;      /* us a tick, 10000 is nominal */
  int64_t slew_q48;  /* what adjtime() or the kernel PLL adds to the rate of MONOTONIC (contained in mono_q48) */
  int64_t left_q16;  /* what they have still to add, at host0: ns * 2^16 */
  int64_t spare[4];
};

/* What lies in the first page. Offsets are part of the format: lab/clock.py reads them. */
struct vc_state {
  uint32_t magic;
  uint32_t ring;
  _Atomic uint64_t published; /* generation << 32 | segments written since creation */
  int64_t status;             /* 16: adjtimex fields that do not define a rate; written under the lock */
  int64_t maxerror_us;        /* at maxerror_host_ns; grows by 500 us/s, as in Linux */
  int64_t maxerror_host_ns;
  int64_t esterror_us;
  int64_t constant;
  int64_t tai_s;
  int64_t slew_mode;          /* 64: enum vc_slew */
  int64_t pll_host_ns;        /* when the PLL was last updated, 0 never */
  int64_t frozen;             /* 80: fault: the counter stands still (a PHC) */
  int64_t lost_tx;            /* 88: fault: hardware transmit stamps never come (a PHC) */
  int64_t steps;              /* 96: how often it was stepped */
  int64_t adjustments;        /* 104: how often its rate was changed by a daemon */
  int64_t late;               /* 112: segments that became visible after they had begun */
  int64_t is_phc;             /* 120 */
  int64_t hw_tx_type;         /* 128: SIOCSHWTSTAMP, one PHC for all NICs of the node */
  int64_t hw_rx_filter;       /* 136 */
  char spare[368];
  pthread_mutex_t lock;       /* 512: robust: freed by the kernel when its holder is killed */
};

#define VC_RING_OFFSET 4096
#define VC_FILE_SIZE (VC_RING_OFFSET + (size_t)VC_RING * sizeof(struct vc_segment))

_Static_assert(sizeof(struct vc_segment) == 128, "lab/clock.py reads this layout");
_Static_assert(sizeof(struct vc_state) <= VC_RING_OFFSET, "the state fits before the ring");
_Static_assert(__builtin_offsetof(struct vc_state, lock) == 512, "lab/clock.py reads this layout");

enum vc_slew { VC_SLEW_NONE = 0, VC_SLEW_ADJTIME = 1, VC_SLEW_PLL = 2 };

static inline struct vc_segment *vc_ring(struct vc_state *s, uint32_t index) {
  return (struct vc_segment *)((char *)s + VC_RING_OFFSET) + (index & (VC_RING - 1));
}

/* One of the lines of a segment at a host instant; the shift of a negative number is a floor (gcc and clang say so). */
static inline int64_t vc_line(int64_t value0, int64_t frac, int64_t rate_q48, int64_t elapsed_ns) {
  return value0 + elapsed_ns + (int64_t)(((__int128)elapsed_ns * rate_q48 + frac) >> 48);
}

static inline int64_t vc_line_frac(int64_t frac, int64_t rate_q48, int64_t elapsed_ns) {
  return (int64_t)(((__int128)elapsed_ns * rate_q48 + frac) & (ONE_Q48 - 1));
}

static inline int64_t vc_raw(const struct vc_segment *g, int64_t host_ns) {
  return vc_line(g->raw0_ns, g->raw_frac, g->osc_q48, host_ns - g->host0_ns);
}

static inline int64_t vc_mono(const struct vc_segment *g, int64_t host_ns) {
  return vc_line(g->mono0_ns, g->mono_frac, g->mono_q48, host_ns - g->host0_ns);
}

static inline int64_t vc_real(const struct vc_segment *g, int64_t host_ns) { return vc_mono(g, host_ns) + g->wall_ns; }

static inline int64_t ns_of(const struct timespec *t) { return (int64_t)t->tv_sec * NS_PER_S + t->tv_nsec; }

static inline struct timespec timespec_of(int64_t ns) {
  int64_t s = ns / NS_PER_S;
  if (ns % NS_PER_S < 0) s--;
  return (struct timespec){.tv_sec = s, .tv_nsec = ns - s * NS_PER_S};
}

struct timex;

/* vstate.c */
int64_t vc_host_ns(void);                  /* the host's CLOCK_MONOTONIC */
int64_t vc_host_of_kernel_stamp(int64_t ns); /* the host instant of a host CLOCK_REALTIME stamp */
int64_t vc_host_realtime_minus_monotonic(void);
void vc_segment_at(struct vc_state *s, int64_t host_ns, struct vc_segment *out);
void vc_read(struct vc_state *s, int64_t host_ns, int64_t out[3]);
void vc_set_real(struct vc_state *s, int64_t real_ns);
void vc_step(struct vc_state *s, int64_t by_ns);
void vc_set_oscillator(struct vc_state *s, int64_t osc_q48);
void vc_set_frozen(struct vc_state *s, int frozen);
int vc_adjtimex(struct vc_state *s, struct timex *tx);
int64_t vc_adjtime(struct vc_state *s, const int64_t *delta_ns); /* gives what was left of the one before */
int vc_create(const char *path, int64_t host_ns, int64_t real_ns, int64_t mono_ns, int64_t raw_ns, int64_t osc_q48,
              int is_phc);
struct vc_state *vc_map(const char *path, int must);

/* vclock.c */
extern struct vc_state *vc_system; /* this node's system clock; NULL: everything passes through */
void *vc_next(const char *name);   /* the function that ours stands before */

/* vphc.c */
extern struct vc_state *vc_phc; /* this node's PHC; NULL: it has none */
void vc_phc_init(void);
int vc_is_phc_clock(clockid_t id);
int vc_phc_adjtime(struct timex *tx);

#endif
