/*
 * libbimetal_brp: a volume of a BRP target, for programs in C.
 *
 * BRP is the block protocol with temporal merge (docs/brp.md): small requests that are submitted together
 * travel together. A session outlives its connections and a target that is killed and started again.
 *
 * Errors are negative numbers of errno(3); brp_last_error() has words for the last one of the calling
 * thread. All calls may be made by any thread at any time, except that brp_close() must be the last call on
 * its session. A session does not survive fork(2): open it in the process that uses it. A child may call
 * brp_close(), which releases its copy and leaves the parent's session as it is; other calls fail there with
 * -ESHUTDOWN.
 *
 * This is version 1 of the interface. Fields called `reserved` are zero.
 */
#ifndef BIMETAL_BRP_H
#define BIMETAL_BRP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Requests of a session that were submitted and have not been reaped, at most. */
#define BRP_REQUESTS_MAX 1024

/* A session with one volume. */
struct brp_session;

/* Rights and properties of a volume, as bits. */
#define BRP_READ_ONLY 1u       /* changes are refused (-EROFS) */
#define BRP_VOLATILE 2u        /* what no flush has covered ends with the target's process */
#define BRP_EPHEMERAL 4u       /* everything ends with the target's process */
#define BRP_ROTATIONAL 8u      /* the medium moves heads */
#define BRP_DISCARD_ZEROES 16u /* what was discarded reads as zeroes */

/* A volume as it was when the session began. */
struct brp_volume {
    uint64_t size_bytes;
    uint32_t block_bytes;        /* offsets and lengths are multiples of it; a power of two, 1 to 4096 */
    uint32_t preferred_bytes;    /* suits the volume best */
    uint32_t transfer_bytes_max; /* the longest read or write */
    uint32_t range_bytes_max;    /* the longest discard or write of zeroes */
    uint32_t rights;             /* BRP_READ_ONLY and the others; ignore unknown bits */
    uint32_t reserved;
};

/* What a request does. */
#define BRP_READ 1u
#define BRP_WRITE 2u
#define BRP_FLUSH 3u        /* makes durable what was reaped before it was submitted; offset and length 0 */
#define BRP_DISCARD 4u
#define BRP_WRITE_ZEROES 5u

/* Flags of a request. */
#define BRP_FUA 1u            /* of a change: it is durable when it is completed */
#define BRP_KEEP_ALLOCATED 2u /* of a write of zeroes: the space stays allocated */

/*
 * One request. Requests under way at the same time may happen in any order, but those that overlap happen in
 * the order of submission.
 */
struct brp_request {
    void *user; /* comes back in the completion; never looked at */
    void *data; /* of a read: filled; of a write: read from; length_bytes long. Otherwise not used.
                   It belongs to the library until the request is reaped, or the session is closed. */
    uint64_t offset_bytes;
    uint32_t length_bytes;
    uint8_t op;    /* BRP_READ and the others */
    uint8_t flags; /* BRP_FUA, BRP_KEEP_ALLOCATED */
    uint16_t reserved;
};

/* What became of a request. */
struct brp_completion {
    void *user;
    int32_t result; /* 0, or a negative errno: see docs/capi.md */
    uint32_t reserved;
};

/*
 * Opens a volume: brp+unix://PATH?export=NAME, brp://ADDRESS:PORT/NAME, or over TLS
 * brps://ADDRESS:PORT/NAME?ca=FILE&cert=FILE&key=FILE, where connections, crc and patience_s may stand behind
 * the `?` as well (docs/client.md).
 *
 * Returns 0 and puts the session into *session; otherwise *session is NULL. -EINVAL: the URI; -ENOENT: the
 * target has no such export; otherwise why there is no connection. Waits for the target up to 10 seconds.
 */
int brp_open(const char *uri, struct brp_session **session);

/*
 * Ends the session: waits for what is under way, for as long as the target may be away at most, and drops
 * completions that were not reaped. It does not flush. Afterwards no buffer is touched. NULL is ignored.
 */
void brp_close(struct brp_session *session);

/* Describes the volume. 0, or -EINVAL for a NULL. */
int brp_get_volume(const struct brp_session *session, struct brp_volume *volume);

/*
 * Submits requests; it never waits. What is submitted by one call is merged as far as the protocol lets it.
 *
 * Returns how many were taken, from the first on: fewer than `count` when BRP_REQUESTS_MAX is reached, and
 * -EAGAIN when that leaves none. -EINVAL when any of them cannot be: an unknown op or flag, a reserved field
 * that is not zero, NULL data, a range beyond the volume, no whole blocks, too long; then none was taken.
 * -ESHUTDOWN when the session's thread has ended.
 */
int brp_submit(struct brp_session *session, const struct brp_request *requests, uint32_t count);

/*
 * Takes up to `max` completions, in the order in which they came about, after waiting until there are `min`
 * (at most max), but no longer than `timeout_ms`: 0 does not wait, -1 waits for ever.
 *
 * Returns how many it took, which is fewer than `min` when the time was over, or -EINVAL. The words of the
 * last completion among them that failed are the thread's brp_last_error(). With min > 0 and nothing under
 * way it waits all the same: another thread may submit.
 */
int brp_reap(struct brp_session *session, struct brp_completion *completions, uint32_t min, uint32_t max,
             int timeout_ms);

/*
 * A descriptor for poll(2) that is readable as long as there are completions to reap. It belongs to the
 * session: never read, write or close it. Without this call the session spends nothing on it.
 */
int brp_event_fd(struct brp_session *session);

/*
 * The same operations for a thread that waits. They do not count towards BRP_REQUESTS_MAX and are not reaped;
 * several threads' travel together. 0 or a negative errno. `flags` as in a request.
 */
int brp_read(struct brp_session *session, void *data, uint32_t length_bytes, uint64_t offset_bytes);
int brp_write(struct brp_session *session, const void *data, uint32_t length_bytes, uint64_t offset_bytes,
              uint32_t flags);
int brp_flush(struct brp_session *session);
int brp_discard(struct brp_session *session, uint32_t length_bytes, uint64_t offset_bytes, uint32_t flags);
int brp_write_zeroes(struct brp_session *session, uint32_t length_bytes, uint64_t offset_bytes,
                     uint32_t flags);

/*
 * Words for the last error that a call returned to this thread, or "". Valid until the thread's next call of
 * this library.
 */
const char *brp_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
