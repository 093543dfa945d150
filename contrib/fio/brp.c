/*
 * An external engine of fio for BRP volumes, on libbimetal_brp.
 *
 * Every job opens its own session. The commit of fio submits all queued requests in one call, so a
 * job with iodepth_batch above 1 sends its batches merged. See docs/capi.md.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include <bimetal_brp.h>

#include "fio.h"
#include "optgroup.h"

struct brp_options {
    void *unused; /* fio treats an option at offset 0 as absent */
    char *uri;
};

static struct fio_option options[] = {
    {
        .name = "uri",
        .lname = "BRP URI",
        .help = "brp+unix://PATH?export=NAME or brp://ADDRESS:PORT/NAME",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct brp_options, uri),
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {.name = NULL},
};

struct brp_job {
    struct brp_session *session;
    struct brp_request *queued; /* queued but not committed; capacity is the job's depth */
    unsigned int queued_count;
    struct brp_completion *reaped; /* completions of the last getevents */
};

static struct brp_session *open_session(struct thread_data *td)
{
    struct brp_options *wanted = td->eo;
    struct brp_session *session;
    if (!wanted->uri) {
        log_err("fio: brp: the option uri is missing\n");
        return NULL;
    }
    if (brp_open(wanted->uri, &session) != 0) {
        log_err("fio: brp: %s\n", brp_last_error());
        return NULL;
    }
    return session;
}

/* Runs before fio forks, so its session is used only to read the size. */
static int brp_setup(struct thread_data *td)
{
    struct brp_volume volume;
    struct brp_session *session = open_session(td);
    int result;
    if (!session)
        return 1;
    result = brp_get_volume(session, &volume);
    brp_close(session);
    if (result != 0)
        return 1;
    if (!td->files_index) {
        add_file(td, "brp", 0, 0);
        td->o.nr_files = td->o.nr_files ? td->o.nr_files : 1;
        td->o.open_files++;
    }
    td->files[0]->real_file_size = volume.size_bytes;
    return 0;
}

static void brp_cleanup(struct thread_data *td)
{
    struct brp_job *job = td->io_ops_data;
    if (!job)
        return;
    brp_close(job->session);
    free(job->queued);
    free(job->reaped);
    free(job);
    td->io_ops_data = NULL;
}

static int brp_init(struct thread_data *td)
{
    struct brp_job *job;
    if (td->o.iodepth > BRP_REQUESTS_MAX) {
        log_err("fio: brp: iodepth is at most %d\n", BRP_REQUESTS_MAX);
        return 1;
    }
    job = calloc(1, sizeof(*job));
    if (!job)
        return 1;
    td->io_ops_data = job;
    job->queued = calloc(td->o.iodepth, sizeof(*job->queued));
    job->reaped = calloc(td->o.iodepth, sizeof(*job->reaped));
    job->session = open_session(td);
    return !job->queued || !job->reaped || !job->session;
}

static enum fio_q_status brp_queue(struct thread_data *td, struct io_u *io_u)
{
    struct brp_job *job = td->io_ops_data;
    struct brp_request request = {
        .user = io_u,
        .offset_bytes = io_u->offset,
        .length_bytes = (uint32_t)io_u->xfer_buflen,
    };
    fio_ro_check(td, io_u);
    switch (io_u->ddir) {
    case DDIR_READ:
        request.op = BRP_READ;
        request.data = io_u->xfer_buf;
        break;
    case DDIR_WRITE:
        request.op = BRP_WRITE;
        request.data = io_u->xfer_buf;
        break;
    case DDIR_TRIM:
        request.op = BRP_DISCARD;
        break;
    case DDIR_SYNC:
    case DDIR_DATASYNC:
        request.op = BRP_FLUSH;
        request.offset_bytes = 0;
        request.length_bytes = 0;
        break;
    default:
        io_u->error = EINVAL;
        return FIO_Q_COMPLETED;
    }
    if (job->queued_count == td->o.iodepth)
        return FIO_Q_BUSY;
    job->queued[job->queued_count++] = request;
    return FIO_Q_QUEUED;
}

/* fio computes latencies from these times: requests are sent by the commit, not earlier. */
static void stamp(struct thread_data *td, const struct brp_request *requests, unsigned int count)
{
    struct timespec now;
    if (!fio_fill_issue_time(td))
        return;
    fio_gettime(&now, NULL);
    for (unsigned int i = 0; i < count; i++) {
        struct io_u *io_u = requests[i].user;
        io_u->issue_time = now;
        io_u_queued(td, io_u);
    }
    if (td->o.read_iolog_file)
        td->last_issue = now;
}

/* fio has at most `iodepth` requests in flight, so the library accepts all if that is in bounds. */
static int brp_commit(struct thread_data *td)
{
    struct brp_job *job = td->io_ops_data;
    int taken;
    if (job->queued_count == 0)
        return 0;
    stamp(td, job->queued, job->queued_count);
    taken = brp_submit(job->session, job->queued, job->queued_count);
    if (taken != (int)job->queued_count) {
        log_err("fio: brp: %s\n", taken < 0 ? brp_last_error() : "too many requests");
        return taken < 0 ? taken : -EAGAIN;
    }
    io_u_mark_submit(td, job->queued_count);
    job->queued_count = 0;
    return 0;
}

static int brp_getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *t)
{
    struct brp_job *job = td->io_ops_data;
    int timeout_ms = t ? (int)(t->tv_sec * 1000 + t->tv_nsec / 1000000) : -1;
    return brp_reap(job->session, job->reaped, min, max, timeout_ms);
}

static struct io_u *brp_event(struct thread_data *td, int event)
{
    struct brp_job *job = td->io_ops_data;
    struct io_u *io_u = job->reaped[event].user;
    io_u->error = (unsigned int)-job->reaped[event].result;
    return io_u;
}

/* The volume is not a file: there is nothing to open and no cache to invalidate. */
static int brp_no_file(struct thread_data *td, struct fio_file *file)
{
    (void)td;
    (void)file;
    return 0;
}

struct ioengine_ops ioengine = {
    .name = "brp",
    .version = FIO_IOOPS_VERSION,
    .flags = FIO_DISKLESSIO | FIO_NOEXTEND | FIO_ASYNCIO_SETS_ISSUE_TIME,
    .options = options,
    .option_struct_size = sizeof(struct brp_options),
    .setup = brp_setup,
    .init = brp_init,
    .cleanup = brp_cleanup,
    .queue = brp_queue,
    .commit = brp_commit,
    .getevents = brp_getevents,
    .event = brp_event,
    .open_file = brp_no_file,
    .invalidate = brp_no_file,
};
