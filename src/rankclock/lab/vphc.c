/* Packet stamps of the kernel on this node's clock, and an emulated PTP hardware clock (PHC) with hardware stamps.
 *
 * With RANKCLOCK_VPHC=FILE set, the node's NICs say that they stamp in hardware with PHC 0. In a node /dev/ptp0 is a hard
 * link to FILE, so a descriptor is the PHC's exactly when it is that inode: nothing has to be remembered per
 * descriptor, and duplicates, forks and execs keep working.
 * A hardware stamp is the kernel's software stamp of the same packet, read on the PHC: sockets that ask for hardware
 * stamps get software ones from the kernel too, and keep RAW_HARDWARE as the mark that they asked.
 * Faults (in the PHC's state): frozen counter; transmit stamps that never come.
 */
#define _GNU_SOURCE
#include "vclock.h"

#include <errno.h>
#include <linux/ethtool.h>
#include <linux/net_tstamp.h>
#include <linux/netlink.h>
#include <linux/ptp_clock.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <unistd.h>

#define NEXT(f) \
  static __typeof__(&f) next; \
  if (!next) next = (__typeof__(&f))vc_next(#f)

#define HARDWARE (SOF_TIMESTAMPING_TX_HARDWARE | SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE)
#define SOFTWARE (SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE)
#define TX_FLAGS (SOF_TIMESTAMPING_TX_HARDWARE | SOF_TIMESTAMPING_TX_SOFTWARE)

#define MAX_ADJ_PPB 62499999 /* that of Intel's i210 */

struct vc_state *vc_phc;
static dev_t phc_device;
static ino_t phc_inode;

void vc_phc_init(void) {
  const char *path = getenv("RANKCLOCK_VPHC");
  struct stat st;
  if (!path || !*path) return;
  vc_phc = vc_map(path, 1);
  if (stat(path, &st)) return;
  phc_device = st.st_dev;
  phc_inode = st.st_ino;
}

static int is_phc(int fd) {
  struct stat st;
  return vc_phc && fstat(fd, &st) == 0 && st.st_ino == phc_inode && st.st_dev == phc_device;
}

int vc_is_phc_clock(clockid_t id) { return id < 0 && (id & 7) == 3 && is_phc(~(id >> 3)); /* FD_TO_CLOCKID, inverted */ }

static int fail(int error) {
  errno = error;
  return -1;
}

/* Linux ptp_clock_adjtime. */
int vc_phc_adjtime(struct timex *tx) {
  if (tx->modes & ADJ_FREQUENCY) {
    __int128 ppb = (__int128)tx->freq * 1000 >> 16;
    if (ppb > MAX_ADJ_PPB || ppb < -MAX_ADJ_PPB) return fail(ERANGE);
  } else if (tx->modes && !(tx->modes & ADJ_SETOFFSET)) {
    return fail(EOPNOTSUPP); /* no phase control, as most NICs */
  }
  int state = vc_adjtimex(vc_phc, tx);
  return state < 0 ? state : 0; /* a PHC has no leap state */
}

/* ---- ioctls ---- */

static int next_ioctl(int fd, unsigned long request, void *argument) {
  NEXT(ioctl);
  return next(fd, request, argument);
}

static int64_t clock_value(struct vc_state *s, int64_t host_ns) {
  struct vc_segment g;
  vc_segment_at(s, host_ns, &g);
  return vc_real(&g, host_ns);
}

static int64_t system_value(uint32_t clock_id, int64_t host_ns) {
  struct vc_segment g;
  vc_segment_at(vc_system, host_ns, &g);
  if (clock_id == CLOCK_MONOTONIC_RAW) return vc_raw(&g, host_ns);
  return clock_id == CLOCK_MONOTONIC ? vc_mono(&g, host_ns) : vc_real(&g, host_ns);
}

static struct ptp_clock_time ptp_time(int64_t ns) {
  struct timespec t = timespec_of(ns);
  return (struct ptp_clock_time){.sec = t.tv_sec, .nsec = (uint32_t)t.tv_nsec};
}

static int sys_offset(struct ptp_sys_offset *o) {
  if (o->n_samples > PTP_MAX_SAMPLES) return fail(EINVAL);
  for (unsigned i = 0; i <= 2 * o->n_samples; i++) {
    int64_t host_ns = vc_host_ns();
    o->ts[i] = ptp_time(i % 2 ? clock_value(vc_phc, host_ns) : system_value(CLOCK_REALTIME, host_ns));
  }
  return 0;
}

static int sys_offset_extended(struct ptp_sys_offset_extended *o) {
  uint32_t clock_id = o->rsv[0]; /* since Linux 6.12 the system clock to compare with */
  if (o->n_samples > PTP_MAX_SAMPLES || o->rsv[1] || o->rsv[2]) return fail(EINVAL);
  if (clock_id != CLOCK_REALTIME && clock_id != CLOCK_MONOTONIC && clock_id != CLOCK_MONOTONIC_RAW)
    return fail(EINVAL);
  for (unsigned i = 0; i < o->n_samples; i++) {
    int64_t before = vc_host_ns(), at = vc_host_ns(), after = vc_host_ns();
    o->ts[i][0] = ptp_time(system_value(clock_id, before));
    o->ts[i][1] = ptp_time(clock_value(vc_phc, at));
    o->ts[i][2] = ptp_time(system_value(clock_id, after));
  }
  return 0;
}

static int phc_ioctl(unsigned long request, void *argument) {
  switch (request) {
    case PTP_CLOCK_GETCAPS:
    case PTP_CLOCK_GETCAPS2:
      *(struct ptp_clock_caps *)argument = (struct ptp_clock_caps){.max_adj = MAX_ADJ_PPB};
      return 0;
    case PTP_SYS_OFFSET:
    case PTP_SYS_OFFSET2: return sys_offset(argument);
    case PTP_SYS_OFFSET_EXTENDED:
    case PTP_SYS_OFFSET_EXTENDED2: return sys_offset_extended(argument);
    case PTP_SYS_OFFSET_PRECISE:
    case PTP_SYS_OFFSET_PRECISE2: return fail(EOPNOTSUPP);
    case PTP_PIN_GETFUNC:
    case PTP_PIN_GETFUNC2:
    case PTP_PIN_SETFUNC:
    case PTP_PIN_SETFUNC2: return fail(EINVAL); /* it has no pins */
    default: return fail(_IOC_TYPE(request) == PTP_CLK_MAGIC ? EOPNOTSUPP : ENOTTY);
  }
}

/* The kernel answers first: it knows whether there is such an interface. */
static int ts_info(int fd, struct ifreq *request) {
  int result = next_ioctl(fd, SIOCETHTOOL, request);
  struct ethtool_ts_info *info = (struct ethtool_ts_info *)request->ifr_data;
  if (result < 0 || strcmp(request->ifr_name, "lo") == 0) return result;
  info->so_timestamping = HARDWARE | SOFTWARE;
  info->phc_index = 0;
  info->tx_types = 1 << HWTSTAMP_TX_OFF | 1 << HWTSTAMP_TX_ON;
  info->rx_filters = 1 << HWTSTAMP_FILTER_NONE | 1 << HWTSTAMP_FILTER_ALL;
  for (int filter = HWTSTAMP_FILTER_PTP_V2_L4_EVENT; filter <= HWTSTAMP_FILTER_NTP_ALL; filter++)
    info->rx_filters |= 1 << filter;
  return 0;
}

static int stamp_config(int fd, unsigned long request, struct ifreq *named) {
  struct hwtstamp_config *config = (struct hwtstamp_config *)named->ifr_data;
  struct ifreq probe = *named;
  if (next_ioctl(fd, SIOCGIFINDEX, &probe) < 0) return -1;
  if (strcmp(named->ifr_name, "lo") == 0) return fail(EOPNOTSUPP);
  if (request == SIOCSHWTSTAMP) {
    if (geteuid() != 0) return fail(EPERM);
    if (config->tx_type > HWTSTAMP_TX_ON || config->rx_filter > HWTSTAMP_FILTER_NTP_ALL) return fail(ERANGE);
    vc_phc->hw_tx_type = config->tx_type;
    vc_phc->hw_rx_filter = config->rx_filter;
  }
  config->tx_type = (int)vc_phc->hw_tx_type;
  config->rx_filter = (int)vc_phc->hw_rx_filter;
  return 0;
}

int ioctl(int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  void *argument = va_arg(list, void *);
  va_end(list);
  if (!vc_phc) return next_ioctl(fd, request, argument);
  if (request == SIOCSHWTSTAMP || request == SIOCGHWTSTAMP) return stamp_config(fd, request, argument);
  if (request == SIOCETHTOOL && *(uint32_t *)((struct ifreq *)argument)->ifr_data == ETHTOOL_GET_TS_INFO)
    return ts_info(fd, argument);
  if (_IOC_TYPE(request) == PTP_CLK_MAGIC && is_phc(fd)) return phc_ioctl(request, argument);
  return next_ioctl(fd, request, argument);
}

/* `ethtool -T` asks by netlink first, which is the kernel's own and would say that there is no PHC; without it, by
 * ioctl. So that it says what every other program of the node sees, it alone gets no netlink. */
int socket(int domain, int type, int protocol) {
  NEXT(socket);
  if (vc_phc && domain == AF_NETLINK && protocol == NETLINK_GENERIC &&
      strcmp(program_invocation_short_name, "ethtool") == 0)
    return fail(EPROTONOSUPPORT);
  return next(domain, type, protocol);
}

/* ---- which stamps a socket gets ---- */

static int next_setsockopt(int fd, int level, int name, const void *value, socklen_t size) {
  NEXT(setsockopt);
  return next(fd, level, name, value, size);
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t size) {
  struct { uint32_t flags, bind_phc; } option; /* struct so_timestamping, or its first word alone */
  if (!vc_phc || level != SOL_SOCKET || name != SO_TIMESTAMPING || (size != 4 && size != 8))
    return next_setsockopt(fd, level, name, value, size);
  memcpy(&option, value, size);
  if (option.flags & SOF_TIMESTAMPING_TX_HARDWARE) option.flags |= SOF_TIMESTAMPING_TX_SOFTWARE;
  if (option.flags & SOF_TIMESTAMPING_RX_HARDWARE) option.flags |= SOF_TIMESTAMPING_RX_SOFTWARE;
  if (option.flags & SOF_TIMESTAMPING_RAW_HARDWARE) option.flags |= SOF_TIMESTAMPING_SOFTWARE;
  return next_setsockopt(fd, level, name, &option, size);
}

static uint32_t stamp_flags(int fd) {
  uint32_t flags = 0;
  socklen_t size = sizeof flags;
  return getsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, &size) == 0 ? flags : 0;
}

/* The fault of lost transmit stamps: the packet goes out on a socket that asks for none, so nothing ever comes. A
 * socket that also wants software stamps (OPT_TX_SWHW) still gets those. Gives the flags to restore, 0 for none. */
static uint32_t lose_tx_stamp(int fd) {
  if (!vc_phc || !vc_phc->lost_tx) return 0;
  uint32_t flags = stamp_flags(fd), without = flags & ~(uint32_t)TX_FLAGS;
  if (!(flags & SOF_TIMESTAMPING_TX_HARDWARE) || (flags & SOF_TIMESTAMPING_OPT_TX_SWHW)) return 0;
  return next_setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &without, sizeof without) == 0 ? flags : 0;
}

static ssize_t restored(int fd, uint32_t flags, ssize_t result) {
  int error = errno;
  if (flags) next_setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof flags);
  errno = error;
  return result;
}

ssize_t send(int fd, const void *data, size_t size, int flags) {
  NEXT(send);
  uint32_t lost = lose_tx_stamp(fd);
  return restored(fd, lost, next(fd, data, size, flags));
}

ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t to_size) {
  NEXT(sendto);
  uint32_t lost = lose_tx_stamp(fd);
  return restored(fd, lost, next(fd, data, size, flags, to, to_size));
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags) {
  NEXT(sendmsg);
  uint32_t lost = lose_tx_stamp(fd);
  return restored(fd, lost, next(fd, m, flags));
}

/* ---- stamps on received messages ---- */

static int is_zero(const struct timespec *t) { return t->tv_sec == 0 && t->tv_nsec == 0; }

static void to_system(struct timespec *t) {
  if (!is_zero(t)) *t = timespec_of(clock_value(vc_system, vc_host_of_kernel_stamp(ns_of(t))));
}

/* ts[0] is the software stamp, ts[2] the raw hardware one (Documentation/networking/timestamping.rst). */
static void convert_three(int fd, int flags, struct timespec ts[3]) {
  int sent = (flags & MSG_ERRQUEUE) != 0;
  if (is_zero(&ts[0])) return;
  int stamped = vc_phc && (sent ? vc_phc->hw_tx_type != HWTSTAMP_TX_OFF && !vc_phc->lost_tx
                                : vc_phc->hw_rx_filter != HWTSTAMP_FILTER_NONE);
  if (stamped && (stamp_flags(fd) & SOF_TIMESTAMPING_RAW_HARDWARE))
    ts[2] = timespec_of(clock_value(vc_phc, vc_host_of_kernel_stamp(ns_of(&ts[0]))));
  to_system(&ts[0]);
}

static void convert_stamps(int fd, int flags, struct msghdr *m) {
  for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    if (c->cmsg_type == SO_TIMESTAMPING && c->cmsg_len >= CMSG_LEN(3 * sizeof(struct timespec))) {
      struct timespec ts[3];
      memcpy(ts, CMSG_DATA(c), sizeof ts);
      convert_three(fd, flags, ts);
      memcpy(CMSG_DATA(c), ts, sizeof ts);
    } else if (c->cmsg_type == SO_TIMESTAMPNS && c->cmsg_len >= CMSG_LEN(sizeof(struct timespec))) {
      struct timespec t;
      memcpy(&t, CMSG_DATA(c), sizeof t);
      to_system(&t);
      memcpy(CMSG_DATA(c), &t, sizeof t);
    } else if (c->cmsg_type == SO_TIMESTAMP && c->cmsg_len >= CMSG_LEN(sizeof(struct timeval))) {
      struct timeval tv;
      memcpy(&tv, CMSG_DATA(c), sizeof tv);
      struct timespec t = {tv.tv_sec, tv.tv_usec * 1000};
      to_system(&t);
      tv = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
      memcpy(CMSG_DATA(c), &tv, sizeof tv);
    }
  }
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags) {
  NEXT(recvmsg);
  ssize_t n = next(fd, m, flags);
  if (n >= 0 && vc_system) convert_stamps(fd, flags, m);
  return n;
}

int recvmmsg(int fd, struct mmsghdr *v, unsigned count, int flags, struct timespec *timeout) {
  NEXT(recvmmsg);
  int n = next(fd, v, count, flags, timeout);
  for (int i = 0; i < n && vc_system; i++) convert_stamps(fd, flags, &v[i].msg_hdr);
  return n;
}
