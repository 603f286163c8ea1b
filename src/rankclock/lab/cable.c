/* A cable in user space: carries frames between two interfaces with a delay, jitter and loss per direction.
 *
 *     cable SETTINGS INNER OUTER [INNER OUTER ...]
 *
 * SETTINGS is a file with one `struct way` for each direction (out of the node, into the node) of each pair, in order;
 * it is mapped, so a change holds from the next frame on. A frame leaves at (kernel's arrival stamp + delay): the time
 * that this process takes to wake up is inside the delay, not on top of it. It does what netem would, where there is none.
 * Frames keep their offloads (checksum, segmentation) in the header that PACKET_VNET_HDR puts before them.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

#define NS_PER_S 1000000000LL
#define FRAME_MAX (65536 + 64)  /* a segmentation-offload frame and its header */
#define QUEUE_MAX 8192          /* more than this are dropped, as a full switch does */
#define SPIN_NS 60000           /* the last part of a wait is spun: a sleeping processor wakes up tens of us late */

struct way {
  int64_t delay_ns, jitter_ns, loss_ppm, spare;
};

struct frame {
  int64_t due_ns;
  uint64_t order; /* frames of equal due time leave in the order they came */
  int to;
  size_t size;
  unsigned char *data;
};

static struct frame queue[QUEUE_MAX];
static unsigned queued;
static uint64_t random_state = 0x9e3779b97f4a7c15ULL;

static int64_t now_ns(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

static uint64_t random_below(uint64_t limit) { /* xorshift64* */
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return limit ? (random_state * 0x2545f4914f6cdd1dULL >> 11) % limit : 0;
}

static int earlier(const struct frame *a, const struct frame *b) {
  return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

static void push(struct frame f) {
  unsigned i = queued++;
  for (; i > 0 && earlier(&f, &queue[(i - 1) / 2]); i = (i - 1) / 2) queue[i] = queue[(i - 1) / 2];
  queue[i] = f;
}

static struct frame pop(void) {
  struct frame first = queue[0], last = queue[--queued];
  unsigned i = 0, child;
  while ((child = 2 * i + 1) < queued) {
    if (child + 1 < queued && earlier(&queue[child + 1], &queue[child])) child++;
    if (!earlier(&queue[child], &last)) break;
    queue[i] = queue[child];
    i = child;
  }
  queue[i] = last;
  return first;
}

static void die(const char *what) {
  fprintf(stderr, "cable: %s: %s\n", what, strerror(errno));
  exit(1);
}

static int packet_socket(const char *interface) {
  int one = 1;
  int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL),
                                .sll_ifindex = (int)if_nametoindex(interface)};
  if (fd < 0 || !address.sll_ifindex) die(interface);
  if (setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one)) die("PACKET_VNET_HDR");
  if (setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one)) die("PACKET_IGNORE_OUTGOING");
  if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one)) die("SO_TIMESTAMPNS");
  if (bind(fd, (struct sockaddr *)&address, sizeof address)) die(interface);
  return fd;
}

/* When the frame arrived, on CLOCK_MONOTONIC (both coarse clocks stand still together: the difference is exact). */
static int64_t arrival_ns(struct msghdr *m) {
  for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_TIMESTAMPNS) continue;
    struct timespec t;
    memcpy(&t, CMSG_DATA(c), sizeof t);
    for (;;) {
      int64_t before = now_ns(CLOCK_MONOTONIC_COARSE), real = now_ns(CLOCK_REALTIME_COARSE);
      if (now_ns(CLOCK_MONOTONIC_COARSE) == before)
        return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec - (real - before);
    }
  }
  return now_ns(CLOCK_MONOTONIC);
}

static void take(int from, int to, const struct way *way) {
  static unsigned char buffer[FRAME_MAX];
  static uint64_t order;
  for (int budget = 64; budget > 0; budget--) { /* then look at what is due */
    char control[128];
    struct iovec part = {buffer, sizeof buffer};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t size = recvmsg(from, &m, 0);
    if (size <= 0) return;
    if ((int64_t)random_below(1000000) < way->loss_ppm || queued == QUEUE_MAX) continue;
    struct frame f = {.to = to, .order = order++, .size = (size_t)size, .data = malloc((size_t)size)};
    if (!f.data) continue;
    memcpy(f.data, buffer, f.size);
    f.due_ns = arrival_ns(&m) + way->delay_ns + (int64_t)random_below((uint64_t)way->jitter_ns);
    push(f);
  }
}

static void give_what_is_due(void) {
  while (queued > 0 && queue[0].due_ns - now_ns(CLOCK_MONOTONIC) < SPIN_NS) {
    struct frame f = pop();
    while (now_ns(CLOCK_MONOTONIC) < f.due_ns) {
    }
    ssize_t sent = write(f.to, f.data, f.size); /* an interface that is down loses the frame, as a cable does */
    (void)sent;
    free(f.data);
  }
}

int main(int count, char **argv) {
  int ends = count - 2;
  if (ends < 2 || ends % 2) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_TIMERSLACK, 1000);
  int fd = open(argv[1], O_RDONLY | O_CLOEXEC);
  const struct way *ways = mmap(NULL, (size_t)ends * sizeof *ways, PROT_READ, MAP_SHARED, fd, 0);
  if (fd < 0 || ways == MAP_FAILED) die(argv[1]);
  struct pollfd *polled = calloc((size_t)ends, sizeof *polled);
  for (int i = 0; i < ends; i++) polled[i] = (struct pollfd){.fd = packet_socket(argv[2 + i]), .events = POLLIN};
  if (write(1, "ready\n", 6) != 6) return 1;
  for (;;) {
    give_what_is_due();
    int64_t wait_ns = queued ? queue[0].due_ns - SPIN_NS - now_ns(CLOCK_MONOTONIC) : NS_PER_S;
    if (wait_ns < 0) wait_ns = 0;
    struct timespec wait = {wait_ns / NS_PER_S, wait_ns % NS_PER_S};
    if (ppoll(polled, (nfds_t)ends, &wait, NULL) <= 0) continue;
    for (int i = 0; i < ends; i++)
      if (polled[i].revents) take(polled[i].fd, polled[i ^ 1].fd, &ways[i]);
  }
}
