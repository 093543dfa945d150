//! `type = "rate"`: limits on bytes and requests per second.

use std::rc::Rc;

use crate::common::{open, refusal, statistic, virtual_rt, write};
use bimetal_block::{Device, Flags, Op, Request};
use bimetal_rt::Rt;

const HEAD: &str = r#"
[device.data]
type = "memory"
size = "1MiB"
[device.top]
type = "rate"
below = "data"
"#;

/// Submits all requests together, in order, and returns the completion time of each request in us.
async fn times_us(rt: &Rt, top: &Rc<dyn Device>, requests: Vec<Request>) -> Vec<u64> {
    let timed = requests.into_iter().map(|request| async move {
        top.submit(request).await.unwrap();
        rt.now().as_ns() / 1_000
    });
    futures_util::future::join_all(timed).await
}

/// A rate of 4,096,000 bytes/s is 4096 bytes in each ms. The bucket has tokens for two reads of
/// 4096 bytes.
#[test]
fn bytes_pass_at_their_rate_after_the_burst() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let body = "bytes_per_s = \"4096kB\"\nburst_bytes = \"8KiB\"";
        let (stack, top) = open(&rt, &format!("{HEAD}{body}")).await;
        let reads = (0..5).map(|i| Request::read(i * 4096, 4096)).collect();
        assert_eq!(
            times_us(&rt, &top, reads).await,
            [0, 0, 1_000, 2_000, 3_000]
        );
        assert_eq!(statistic(&top, "waited_requests"), 3.0);
        assert_eq!(statistic(&top, "waited_ns"), 6_000_000.0);
        // Reads and writes share the limit on bytes. Requests without data pass immediately.
        let discard = Request::without_data(Op::Discard, 0, 65_536, Flags::NONE);
        let mixed = vec![write(&rt, 0, 4096, 7), Request::read(0, 4096), discard];
        assert_eq!(times_us(&rt, &top, mixed).await, [4_000, 5_000, 5_000]);
        stack.close().await.unwrap();
    });
}

/// A request of four times the size of the token bucket waits until the bucket is full. The bucket
/// then has a deficit of three times its size, and the next request waits until the deficit is
/// refilled.
#[test]
fn a_request_larger_than_the_burst_passes_and_is_paid_for() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let body = "bytes_per_s = \"4096kB\"\nburst_bytes = \"4KiB\"";
        let (_stack, top) = open(&rt, &format!("{HEAD}{body}")).await;
        let requests = vec![
            Request::read(0, 4096),
            Request::read(0, 16_384),
            Request::read(0, 4096),
        ];
        assert_eq!(times_us(&rt, &top, requests).await, [0, 1_000, 5_000]);
    });
}

#[test]
fn requests_pass_at_their_rate() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let body = "requests_per_s = 100\nburst_requests = 1";
        let (_stack, top) = open(&rt, &format!("{HEAD}{body}")).await;
        let mut requests = vec![Request::flush(), Request::read(0, 65_536)];
        requests.push(Request::without_data(Op::Extents, 0, 4096, Flags::NONE));
        requests.push(Request::read(0, 4096));
        // Extents requests need no tokens, so the third request passes immediately.
        assert_eq!(times_us(&rt, &top, requests).await, [0, 10_000, 0, 20_000]);
        // A request that the geometry refuses uses no tokens.
        assert!(top.submit(Request::read(1 << 20, 4096)).await.is_err());
        let next = times_us(&rt, &top, vec![Request::flush()]).await;
        assert_eq!(next, [30_000]);
    });
}

/// Of two limits the stricter one decides: 1,000 requests/s allow a request each ms, and 4096 bytes
/// at 2,048,000 bytes/s take 2 ms.
#[test]
fn both_limits_hold() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let body = "requests_per_s = 1000\nburst_requests = 1\nbytes_per_s = \"2048kB\"\nburst_bytes = \"4KiB\"";
        let (_stack, top) = open(&rt, &format!("{HEAD}{body}")).await;
        let requests = vec![
            Request::read(0, 4096),
            Request::read(0, 4096),
            Request::flush(),
            Request::flush(),
        ];
        // At 2 ms the bucket of byte tokens suffices for the second read. The second read also
        // takes the only request token. Each of the two flushes needs one more request token, and
        // the bucket gets these tokens at 3 ms and at 4 ms.
        assert_eq!(times_us(&rt, &top, requests).await, [0, 2_000, 3_000, 4_000]);
    });
}

#[test]
fn without_limits_nothing_waits() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (_stack, top) = open(&rt, HEAD).await;
        let reads = (0..100).map(|_| Request::read(0, 65_536)).collect();
        assert!(times_us(&rt, &top, reads).await.iter().all(|&us| us == 0));
    });
}

#[test]
fn limits_that_make_no_sense_are_refused() {
    for (body, words) in [
        ("bytes_per_s = \"0B\"", "would block all requests"),
        ("requests_per_s = 0", "would block all requests"),
        (
            "requests_per_s = 5\nburst_requests = 0",
            "would block all requests",
        ),
        ("burst_bytes = \"1MiB\"", "needs `bytes_per_s`"),
        ("burst_requests = 5", "needs `requests_per_s`"),
        ("iops = 5", "unknown field `iops`"),
    ] {
        let message = refusal(&format!("{HEAD}{body}\n"));
        assert!(message.contains(words), "{message}");
    }
}
