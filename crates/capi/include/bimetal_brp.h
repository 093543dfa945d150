/*
 * libbimetal_brp: a volume of a BRP target, for programs in C.
 *
 * BRP is the block protocol with temporal merge (docs/brp.md): small requests that are submitted
 * together are sent in one message. A session survives broken connections, and a target that is
 * killed and restarted.
 *
 * Errors are negative values of errno(3). brp_last_error() describes the last error of the calling
 * thread. Any thread may make any call at any time, except that brp_close() must be the last call
 * on its session. A session does not survive fork(2): open it in the process that uses it. A child
 * may call brp_close(), which releases the child's copy and does not affect the session of the
 * parent; other calls in the child fail with -ESHUTDOWN.
 *
 * This is version 1 of the interface. Fields named `reserved` must be zero.
 */
#ifndef BIMETAL_BRP_H
#define BIMETAL_BRP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Maximum number of requests of a session that are submitted and not yet reaped. */
#define BRP_REQUESTS_MAX 1024

/* A session with one volume. */
struct brp_session;

/* Rights and properties of a volume, as bits. */
#define BRP_READ_ONLY 1u       /* changes are refused (-EROFS) */
#define BRP_VOLATILE 2u        /* unflushed data is lost when the target's process ends */
#define BRP_EPHEMERAL 4u       /* all data is lost when the target's process ends */
#define BRP_ROTATIONAL 8u      /* the medium is rotational: seeks cost time */
#define BRP_DISCARD_ZEROES 16u /* discarded ranges read as zeroes */

/* Properties of a volume at the start of the session. */
struct brp_volume {
    uint64_t size_bytes;
    uint32_t block_bytes;        /* unit of offsets and lengths; a power of two, 1 to 4096 */
    uint32_t preferred_bytes;    /* preferred length of a request */
    uint32_t transfer_bytes_max; /* maximum length of a read or write */
    uint32_t range_bytes_max;    /* maximum length of a discard or write of zeroes */
    uint32_t rights;             /* BRP_READ_ONLY and so on; ignore unknown bits */
    uint32_t reserved;
};

/* Operations of a request. */
#define BRP_READ 1u
#define BRP_WRITE 2u
#define BRP_FLUSH 3u        /* makes durable the changes reaped before it; offset and length 0 */
#define BRP_DISCARD 4u
#define BRP_WRITE_ZEROES 5u

/* Flags of a request. */
#define BRP_FUA 1u            /* of a change: it is durable when it completes */
#define BRP_KEEP_ALLOCATED 2u /* of a write of zeroes: the space stays allocated */

/*
 * One request. Requests in flight at the same time are executed in any order, except that
 * overlapping requests are executed in the order of their submission.
 */
struct brp_request {
    void *user; /* returned in the completion; the library does not interpret it */
    void *data; /* Buffer of length_bytes: filled by a read, read by a write, otherwise not used. It
                   belongs to the library until the request is reaped or the session is closed. */
    uint64_t offset_bytes;
    uint32_t length_bytes;
    uint8_t op;    /* BRP_READ and so on */
    uint8_t flags; /* BRP_FUA, BRP_KEEP_ALLOCATED */
    uint16_t reserved;
};

/* Result of a request. */
struct brp_completion {
    void *user;
    int32_t result; /* 0, or a negative errno: see docs/capi.md */
    uint32_t reserved;
};

/*
 * Opens a volume: brp+unix://PATH?export=NAME, brp://ADDRESS:PORT/NAME, or over TLS
 * brps://ADDRESS:PORT/NAME?ca=FILE&cert=FILE&key=FILE. The options connections, crc and patience_s
 * may also follow the `?` (docs/client.md). Waits up to 10 seconds for the target.
 *
 * Returns 0 and stores the session in *session. On an error, *session is NULL, and the result is
 * -EINVAL if the URI is invalid, -ENOENT if the target has no such export, or the reason why the
 * connection failed.
 */
int brp_open(const char *uri, struct brp_session **session);

/*
 * Ends the session. Waits for the requests in flight, but not longer than the target may be
 * unreachable (patience_s), and drops completions that were not reaped. It does not flush. After it
 * has returned, the library accesses no buffer. NULL is ignored.
 */
void brp_close(struct brp_session *session);

/* Stores the properties of the volume in *volume. Returns 0, or -EINVAL for a NULL pointer. */
int brp_get_volume(const struct brp_session *session, struct brp_volume *volume);

/*
 * Submits requests; it never waits. The requests of one call are merged into as few messages as the
 * protocol allows.
 *
 * Returns the number of accepted requests, counted from the first one. It is less than `count` if
 * BRP_REQUESTS_MAX is reached; if no request could be accepted for that reason, the result is
 * -EAGAIN. The result is -EINVAL, and no request is accepted, if any of them is invalid: an unknown
 * op or flag, a reserved field that is not zero, NULL data, a range beyond the end of the volume,
 * an offset or length that is not a multiple of block_bytes, or a length above its maximum. The
 * result is -ESHUTDOWN if the session's thread has ended.
 */
int brp_submit(struct brp_session *session, const struct brp_request *requests, uint32_t count);

/*
 * Waits until `min` completions are available (at most `max`), but not longer than `timeout_ms`,
 * where 0 means not to wait and -1 means to wait without a limit. Then removes up to `max`
 * completions from the session, in the order of completion.
 *
 * Returns the number of completions, which is less than `min` after a timeout, or -EINVAL.
 * brp_last_error() then describes the last failed request among them. With min > 0 the call waits
 * even if no request is in flight, because another thread may submit one.
 */
int brp_reap(struct brp_session *session, struct brp_completion *completions, uint32_t min, uint32_t max,
             int timeout_ms);

/*
 * Returns a descriptor for poll(2), which is readable while there are completions to reap. The
 * descriptor belongs to the session: do not read, write or close it. A session on which this call
 * is never made has no cost for it.
 */
int brp_event_fd(struct brp_session *session);

/*
 * Blocking versions of the operations. They do not count towards BRP_REQUESTS_MAX and are not
 * reaped. Calls of several threads are sent together. They return 0 or a negative errno; `flags`
 * are as in a request.
 */
int brp_read(struct brp_session *session, void *data, uint32_t length_bytes, uint64_t offset_bytes);
int brp_write(struct brp_session *session, const void *data, uint32_t length_bytes, uint64_t offset_bytes,
              uint32_t flags);
int brp_flush(struct brp_session *session);
int brp_discard(struct brp_session *session, uint32_t length_bytes, uint64_t offset_bytes, uint32_t flags);
int brp_write_zeroes(struct brp_session *session, uint32_t length_bytes, uint64_t offset_bytes,
                     uint32_t flags);

/*
 * Returns a description of the last error that a call has returned to this thread, or "". The
 * string is valid until the thread's next call of this library.
 */
const char *brp_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
