/*
 * A program that uses a volume of 8 MiB through the C library, and reports the first failed check.
 *
 * Usage: capi URI MISSING-URI   (MISSING-URI names an export that the target does not have)
 */
#include <bimetal_brp.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 4096u
#define MANY 200u

_Static_assert(sizeof(struct brp_request) == 32, "the size that the library has");
_Static_assert(sizeof(struct brp_completion) == 16, "the size that the library has");
_Static_assert(sizeof(struct brp_volume) == 32, "the size that the library has");

#define CHECK(condition) check((condition), #condition, __LINE__)

static void check(int holds, const char *condition, int line)
{
    if (!holds) {
        fprintf(stderr, "line %d: not so: %s (last error: %s)\n", line, condition, brp_last_error());
        exit(1);
    }
}

static struct brp_session *opened(const char *uri)
{
    struct brp_session *session = NULL;
    CHECK(brp_open(uri, &session) == 0);
    CHECK(session != NULL);
    return session;
}

static void what_cannot_be_opened(const char *missing)
{
    struct brp_session *session = (struct brp_session *)&session;
    CHECK(brp_open(NULL, &session) == -EINVAL);
    CHECK(session == NULL);
    CHECK(brp_open("brp://localhost:1/x", NULL) == -EINVAL);
    CHECK(brp_open("nbd://localhost:1/x", &session) == -EINVAL);
    CHECK(strstr(brp_last_error(), "brp") != NULL);
    CHECK(brp_open("brp+unix:///nonexistent/s", &session) == -ENOENT);
    CHECK(brp_open(missing, &session) == -ENOENT);
    CHECK(strstr(brp_last_error(), "refused") != NULL);
    CHECK(session == NULL);
}

static void null_is_refused_everywhere(void)
{
    struct brp_volume volume;
    struct brp_request request;
    struct brp_completion completion;
    char data[BLOCK];
    memset(&request, 0, sizeof request);
    CHECK(brp_get_volume(NULL, &volume) == -EINVAL);
    CHECK(brp_submit(NULL, &request, 1) == -EINVAL);
    CHECK(brp_reap(NULL, &completion, 0, 1, 0) == -EINVAL);
    CHECK(brp_event_fd(NULL) == -EINVAL);
    CHECK(brp_read(NULL, data, BLOCK, 0) == -EINVAL);
    CHECK(brp_write(NULL, data, BLOCK, 0, 0) == -EINVAL);
    CHECK(brp_flush(NULL) == -EINVAL);
    CHECK(brp_discard(NULL, BLOCK, 0, 0) == -EINVAL);
    CHECK(brp_write_zeroes(NULL, BLOCK, 0, 0) == -EINVAL);
    brp_close(NULL);
}

static void blocking_calls(struct brp_session *session)
{
    static char out[3 * BLOCK], in[3 * BLOCK];
    memset(out, 'w', sizeof out);
    CHECK(brp_write(session, out, sizeof out, BLOCK, 0) == 0);
    CHECK(brp_read(session, in, sizeof in, BLOCK) == 0);
    CHECK(memcmp(out, in, sizeof in) == 0);
    CHECK(brp_write_zeroes(session, BLOCK, 2 * BLOCK, BRP_KEEP_ALLOCATED | BRP_FUA) == 0);
    CHECK(brp_read(session, in, sizeof in, BLOCK) == 0);
    memset(out + BLOCK, 0, BLOCK);
    CHECK(memcmp(out, in, sizeof in) == 0);
    CHECK(brp_discard(session, BLOCK, BLOCK, 0) == 0);
    CHECK(brp_flush(session) == 0);
}

static void what_cannot_be_asked_for(struct brp_session *session, const struct brp_volume *volume)
{
    static char data[2 * BLOCK];
    struct brp_request good = {.data = data, .length_bytes = BLOCK, .op = BRP_READ};
    struct brp_request pair[2];
    struct brp_completion completion;
    CHECK(brp_read(session, NULL, BLOCK, 0) == -EINVAL);
    CHECK(brp_read(session, data, 0, 0) == -EINVAL);
    CHECK(brp_read(session, data, BLOCK, volume->size_bytes) == -EINVAL);
    CHECK(strstr(brp_last_error(), "leave the volume") != NULL);
    CHECK(brp_read(session, data, BLOCK, UINT64_MAX - BLOCK + 1) == -EINVAL);
    CHECK(brp_read(session, data, volume->transfer_bytes_max + BLOCK, 0) == -EINVAL);
    CHECK(brp_write(session, data, BLOCK, 0, BRP_KEEP_ALLOCATED) == -EINVAL);
    CHECK(brp_write(session, data, BLOCK, 0, 256) == -EINVAL);
    CHECK(brp_submit(session, NULL, 1) == -EINVAL);
    CHECK(brp_submit(session, NULL, 0) == 0);
    CHECK(brp_reap(session, NULL, 0, 1, 0) == -EINVAL);
    CHECK(brp_reap(session, &completion, 2, 1, 0) == -EINVAL);
    CHECK(brp_reap(session, &completion, 0, 1, -2) == -EINVAL);
    /* One invalid request makes the whole call fail: none of its requests is accepted. */
    for (int what = 0; what < 4; what++) {
        pair[0] = pair[1] = good;
        switch (what) {
        case 0: pair[1].op = 77; break;
        case 1: pair[1].flags = BRP_FUA; break;
        case 2: pair[1].reserved = 1; break;
        default: pair[1].op = BRP_FLUSH; break;
        }
        CHECK(brp_submit(session, pair, 2) == -EINVAL);
    }
    CHECK(brp_reap(session, &completion, 0, 1, 0) == 0);
    /* No request is in flight, so the call returns after its timeout. */
    CHECK(brp_reap(session, &completion, 1, 1, 1) == 0);
}

/* Each block of the batch holds its own number, in whatever order the requests complete. */
static void a_batch_by_event_fd(struct brp_session *session)
{
    static unsigned data[MANY][BLOCK / sizeof(unsigned)];
    static struct brp_request requests[MANY];
    struct brp_completion completions[7];
    int seen[MANY];
    struct pollfd ready = {.fd = brp_event_fd(session), .events = POLLIN};
    CHECK(ready.fd >= 0);
    CHECK(brp_event_fd(session) == ready.fd);
    CHECK(poll(&ready, 1, 0) == 0);
    for (unsigned op = BRP_WRITE; op >= BRP_READ; op--) {
        memset(seen, 0, sizeof seen);
        for (unsigned i = 0; i < MANY; i++) {
            if (op == BRP_WRITE)
                data[i][0] = data[i][BLOCK / sizeof(unsigned) - 1] = i + 1;
            else
                memset(data[i], 0xff, BLOCK);
            requests[i] = (struct brp_request){.user = &seen[i], .data = data[i], .op = (uint8_t)op,
                                               .offset_bytes = (uint64_t)(MANY - i) * BLOCK,
                                               .length_bytes = BLOCK};
        }
        CHECK(brp_submit(session, requests, MANY) == (int)MANY);
        for (unsigned reaped = 0; reaped < MANY;) {
            CHECK(poll(&ready, 1, 60000) == 1);
            int count = brp_reap(session, completions, 0, 7, 0);
            CHECK(count > 0 && count <= 7);
            for (int i = 0; i < count; i++) {
                CHECK(completions[i].result == 0);
                ++*(int *)completions[i].user;
            }
            reaped += (unsigned)count;
        }
        CHECK(poll(&ready, 1, 0) == 0);
        for (unsigned i = 0; i < MANY; i++) {
            CHECK(seen[i] == 1);
            CHECK(data[i][0] == i + 1 && data[i][BLOCK / sizeof(unsigned) - 1] == i + 1);
        }
    }
}

static void no_more_than_the_bound(struct brp_session *session)
{
    static char data[BLOCK];
    static struct brp_request requests[BRP_REQUESTS_MAX + 5];
    static struct brp_completion completions[BRP_REQUESTS_MAX];
    for (unsigned i = 0; i < BRP_REQUESTS_MAX + 5; i++)
        requests[i] = (struct brp_request){.data = data, .length_bytes = BLOCK, .op = BRP_WRITE};
    CHECK(brp_submit(session, requests, BRP_REQUESTS_MAX + 5) == BRP_REQUESTS_MAX);
    CHECK(brp_submit(session, requests, 1) == -EAGAIN);
    /* A blocking call does not count against the bound. */
    CHECK(brp_flush(session) == 0);
    CHECK(brp_reap(session, completions, BRP_REQUESTS_MAX, BRP_REQUESTS_MAX, -1) == BRP_REQUESTS_MAX);
    CHECK(brp_submit(session, requests, 1) == 1);
    CHECK(brp_reap(session, completions, 1, 1, -1) == 1);
}

int main(int count, char **words)
{
    struct brp_volume volume;
    struct brp_session *session;
    static char data[BLOCK];
    struct brp_request unreaped = {.data = data, .length_bytes = BLOCK, .op = BRP_READ};
    if (count != 3)
        return 2;
    CHECK(strcmp(brp_last_error(), "") == 0);
    what_cannot_be_opened(words[2]);
    null_is_refused_everywhere();
    session = opened(words[1]);
    CHECK(brp_get_volume(session, NULL) == -EINVAL);
    CHECK(brp_get_volume(session, &volume) == 0);
    CHECK(volume.size_bytes == 8u << 20);
    CHECK(volume.block_bytes > 0 && BLOCK % volume.block_bytes == 0);
    CHECK((volume.rights & BRP_READ_ONLY) == 0 && (volume.rights & BRP_EPHEMERAL) != 0);
    blocking_calls(session);
    what_cannot_be_asked_for(session, &volume);
    a_batch_by_event_fd(session);
    no_more_than_the_bound(session);
    /* An unreaped completion does not keep a session open. */
    CHECK(brp_submit(session, &unreaped, 1) == 1);
    brp_close(session);
    puts("all as it should be");
    return 0;
}
