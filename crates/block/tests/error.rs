//! `type = "error"`: the choice of the requests that fail or hang.

use std::rc::Rc;
use std::time::Duration;

use crate::common::{open, refusal, statistic, timed, virtual_rt, write};
use bimetal_block::{Device, IoError, Request};

const HEAD: &str = r#"
[device.data]
type = "memory"
size = "1MiB"
[device.top]
type = "error"
below = "data"
"#;

async fn read(top: &Rc<dyn Device>, offset: u64) -> Option<IoError> {
    top.submit(Request::read(offset, 4096)).await.err()
}

#[test]
fn without_a_choice_all_requests_fail() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (stack, top) = open(
            &rt,
            &format!("{HEAD}code = \"no-space\"\nops = [\"write\"]"),
        )
        .await;
        let result = top.submit(write(&rt, 0, 4096, 7)).await;
        assert_eq!(result.unwrap_err(), IoError::NoSpace);
        assert_eq!(read(&top, 0).await, None);
        assert!(top.submit(Request::flush()).await.is_ok());
        let data = top.submit(Request::read(0, 4096)).await.unwrap();
        assert_eq!(
            data.into_data().to_vec(),
            [0; 4096],
            "a failed write had no effect"
        );
        assert_eq!(statistic(&top, "failed_requests"), 1.0);
        stack.close().await.unwrap();
    });
}

#[test]
fn every_third_read_fails() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let body = "code = \"medium\"\nops = [\"read\"]\nnth = 3";
        let (_stack, top) = open(&rt, &format!("{HEAD}{body}")).await;
        for number in 1..=12 {
            let expected = (number % 3 == 0).then_some(IoError::Medium);
            assert_eq!(read(&top, 0).await, expected, "read {number}");
            assert!(
                top.submit(Request::flush()).await.is_ok(),
                "flushes do not count"
            );
        }
    });
}

/// Of 4,000 requests with an error probability of 0.1, 400 fail on average. The standard deviation
/// is 19, and six standard deviations are 114.
#[test]
fn a_probability_is_kept_and_replays() {
    let run = |seed: u64| {
        let rt = virtual_rt(1);
        rt.block_on(async {
            let body = format!("code = \"medium\"\nprobability = 0.1\nseed = {seed}");
            let (_stack, top) = open(&rt, &format!("{HEAD}{body}")).await;
            let mut failed = Vec::new();
            for number in 0..4_000 {
                if read(&top, 0).await.is_some() {
                    failed.push(number);
                }
            }
            failed
        })
    };
    let failed = run(1);
    assert!((286..=514).contains(&failed.len()), "{}", failed.len());
    assert_eq!(failed, run(1));
    assert_ne!(failed, run(2));
}

#[test]
fn a_range_and_a_time_limit_it() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let body =
            "code = \"medium\"\nfrom = \"8KiB\"\nto = \"16KiB\"\nafter = \"10s\"\nfor = \"5s\"";
        let (_stack, top) = open(&rt, &format!("{HEAD}{body}")).await;
        let medium = Some(IoError::Medium);
        assert_eq!(read(&top, 8192).await, None, "not yet");
        rt.sleep(Duration::from_secs(10)).await;
        for (offset, expected) in [
            (4096, None),
            (8192, medium),
            (12_288, medium),
            (16_384, None),
        ] {
            assert_eq!(read(&top, offset).await, expected, "{offset}");
        }
        let across = top.submit(Request::read(4096, 8192)).await;
        assert_eq!(across.err(), medium, "one byte in the range is enough");
        assert!(
            top.submit(Request::flush()).await.is_ok(),
            "a flush has no range"
        );
        rt.sleep(Duration::from_millis(4_999)).await;
        assert_eq!(read(&top, 8192).await, medium);
        rt.sleep(Duration::from_millis(1)).await;
        assert_eq!(read(&top, 8192).await, None, "over");
    });
}

#[test]
fn a_late_failure_has_had_its_effect() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let body = "code = \"timeout\"\nops = [\"write\"]\nlate = true";
        let (_stack, top) = open(&rt, &format!("{HEAD}{body}")).await;
        let result = top.submit(write(&rt, 0, 4096, 7)).await;
        assert_eq!(result.unwrap_err(), IoError::Timeout);
        let data = top.submit(Request::read(0, 4096)).await.unwrap();
        assert_eq!(data.into_data().to_vec(), [7; 4096]);
    });
}

#[test]
fn a_hang_ends_with_success_or_with_the_code() {
    for (code, expected) in [("", None), ("code = \"timeout\"\n", Some(IoError::Timeout))] {
        let rt = virtual_rt(1);
        rt.block_on(async {
            let (_stack, top) = open(&rt, &format!("{HEAD}{code}hang = \"30s\"\nnth = 2")).await;
            assert_eq!(read(&top, 0).await, None);
            assert_eq!(rt.now().as_ns(), 0);
            assert_eq!(read(&top, 0).await, expected);
            assert_eq!(rt.now().as_ns(), 30_000_000_000);
            assert_eq!(statistic(&top, "hung_requests"), 1.0);
        });
    }
}

#[test]
fn what_hangs_forever_ends_with_the_device() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (stack, top) = open(&rt, &format!("{HEAD}hang = \"forever\"")).await;
        let hung = rt.spawn(timed(rt.clone(), Rc::clone(&top), Request::read(0, 4096)));
        rt.sleep(Duration::from_secs(1_000_000)).await;
        assert!(!hung.is_finished());
        assert_eq!(statistic(&top, "in_flight_requests"), 1.0);
        stack.close().await.unwrap();
        assert_eq!(hung.await.0.unwrap_err(), IoError::Closed);
    });
}

#[test]
fn rules_that_make_no_sense_are_refused() {
    for (body, words) in [
        ("", "needs a `code`"),
        ("code = \"medium\"\nprobability = 0.1\nnth = 2", "not both"),
        ("code = \"medium\"\nprobability = 1.1", "from 0 to 1"),
        ("code = \"medium\"\nprobability = nan", "from 0 to 1"),
        ("code = \"medium\"\nnth = 0", "at least 1"),
        (
            "code = \"medium\"\nfrom = \"8KiB\"\nto = \"8KiB\"",
            "below `to`",
        ),
        ("hang = \"1s\"\nlate = true", "needs a `code`"),
        ("code = \"eio\"", "unknown variant `eio`"),
        (
            "code = \"medium\"\nops = [\"trim\"]",
            "unknown variant `trim`",
        ),
        ("hang = \"never\"", "time \"never\""),
    ] {
        let message = refusal(&format!("{HEAD}{body}\n"));
        assert!(
            message.contains(words) && !message.contains('\n'),
            "{message}"
        );
    }
}
