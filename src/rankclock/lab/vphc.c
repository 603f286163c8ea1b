/* Packet stamps of the kernel on this node's clock, and an emulated PTP hardware clock. */
#define _GNU_SOURCE
#include "vclock.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/net_tstamp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

struct vc_state *vc_phc;

void vc_phc_init(void) {
  const char *path = getenv("RANKCLOCK_VPHC");
  if (path && *path) vc_phc = vc_map(path, 1);
}

int vc_is_phc_clock(clockid_t id) { (void)id; return 0; }

static void convert(struct timespec *t) {
  struct vc_segment g;
  if (t->tv_sec == 0 && t->tv_nsec == 0) return;
  int64_t host_ns = vc_host_of_kernel_stamp(ns_of(t));
  vc_segment_at(vc_system, host_ns, &g);
  *t = timespec_of(vc_real(&g, host_ns));
}

static void convert_stamps(struct msghdr *m) {
  for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    if (c->cmsg_type == SO_TIMESTAMPNS || c->cmsg_type == SO_TIMESTAMPING) {
      struct timespec t;
      memcpy(&t, CMSG_DATA(c), sizeof t);
      convert(&t);
      memcpy(CMSG_DATA(c), &t, sizeof t);
    } else if (c->cmsg_type == SO_TIMESTAMP) {
      struct timeval tv;
      memcpy(&tv, CMSG_DATA(c), sizeof tv);
      struct timespec t = {tv.tv_sec, tv.tv_usec * 1000};
      convert(&t);
      tv = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
      memcpy(CMSG_DATA(c), &tv, sizeof tv);
    }
  }
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags) {
  static ssize_t (*next)(int, struct msghdr *, int);
  if (!next) next = (ssize_t(*)(int, struct msghdr *, int))vc_next("recvmsg");
  ssize_t n = next(fd, m, flags);
  if (n >= 0 && vc_system) convert_stamps(m);
  return n;
}

int recvmmsg(int fd, struct mmsghdr *v, unsigned count, int flags, struct timespec *timeout) {
  static int (*next)(int, struct mmsghdr *, unsigned, int, struct timespec *);
  if (!next) next = (int (*)(int, struct mmsghdr *, unsigned, int, struct timespec *))vc_next("recvmmsg");
  int n = next(fd, v, count, flags, timeout);
  for (int i = 0; i < n && vc_system; i++) convert_stamps(&v[i].msg_hdr);
  return n;
}
