//! `type = "log"`: a line for the start and the end of each request.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::common::{open, statistic, virtual_rt, write};
use bimetal_block::layers::fault::{Fault, FaultPlan};
use bimetal_block::layers::log::{FileSink, Log, LogSink, MemorySink};
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::{Device, Flags, IoError, Op, Request};
use bimetal_rt::{Rt, UringOptions};

#[test]
fn every_request_has_a_start_and_an_end() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let fault = Fault::new(
            &rt,
            Rc::new(MemoryDevice::new(&rt, 1 << 20)),
            FaultPlan::default(),
            1,
        );
        let control = fault.control();
        control.set_delay(Op::Write, Duration::from_micros(250));
        let sink = Rc::new(MemorySink::default());
        let log = Log::new(&rt, Rc::new(fault), Rc::clone(&sink) as Rc<dyn LogSink>);
        rt.sleep(Duration::from_micros(1_000_120)).await;
        let mut request = write(&rt, 8192, 4096, 7);
        request.flags = Flags::FUA;
        log.submit(request).await.unwrap();
        control.fail_next(Op::Flush, IoError::NoSpace);
        assert!(log.submit(Request::flush()).await.is_err());
        let slow = rt.timeout(Duration::from_nanos(5), log.submit(write(&rt, 0, 4096, 1)));
        assert!(slow.await.is_err());
        let keep = Flags {
            keep_allocated: true,
            ..Flags::FUA
        };
        let zero = Request::without_data(Op::WriteZeroes, 0, 4096, keep);
        log.submit(zero).await.unwrap();
        let expected = [
            "1.000120000 0 start write 8192 4096 fua",
            "1.000370000 0 end write 8192 4096 ok 250000",
            "1.000370000 1 start flush 0 0",
            "1.000370000 1 end flush 0 0 NoSpace 0",
            "1.000370000 2 start write 0 4096",
            "1.000370005 2 dropped write 0 4096",
            "1.000370005 3 start write-zeroes 0 4096 fua keep-allocated",
            "1.000370005 3 end write-zeroes 0 4096 ok 0",
        ];
        assert_eq!(sink.lines(), expected);
        log.close().await.unwrap();
    });
}

#[test]
fn memory_keeps_the_last_lines() {
    let sink = MemorySink::default();
    for number in 0..65_536 + 10 {
        sink.line(&number.to_string());
    }
    let lines = sink.lines();
    assert_eq!((lines.len(), lines[0].as_str()), (65_536, "10"));
    assert_eq!(sink.lost_lines(), 10);
}

/// Path of a file that belongs to this test process; the file is removed when the value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("bimetal-log-{}-{name}", std::process::id());
        Scratch(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If the removal fails, only a file in the directory for temporary files remains.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn real_rt() -> Rt {
    Rt::real_time(UringOptions::default()).expect("the kernel has io_uring")
}

#[test]
fn a_file_gets_every_line_behind_what_it_held() {
    let scratch = Scratch::new("append");
    std::fs::write(&scratch.0, "older\n").unwrap();
    let rt = real_rt();
    let text = format!(
        "[device.data]\ntype = \"memory\"\nsize = \"1MiB\"\n[device.top]\ntype = \"log\"\nbelow = \"data\"\npath = \"{}\"\n",
        scratch.0.display()
    );
    rt.block_on(async {
        let (stack, top) = open(&rt, &text).await;
        for number in 0..1_000 {
            top.submit(Request::read(number % 256 * 4096, 4096))
                .await
                .unwrap();
            if number % 100 == 0 {
                // Let the task that writes the log run.
                rt.sleep(Duration::from_micros(10)).await;
            }
        }
        stack.close().await.unwrap();
        assert_eq!(statistic(&top, "lost_lines"), 0.0);
    });
    let text = std::fs::read_to_string(&scratch.0).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2_001, "older"));
    for number in 0..1_000 {
        let offset = number % 256 * 4096;
        let start = format!(" {number} start read {offset} 4096");
        let end = format!(" {number} end read {offset} 4096 ok ");
        assert!(
            lines[1 + 2 * number].ends_with(&start),
            "{}",
            lines[1 + 2 * number]
        );
        assert!(
            lines[2 + 2 * number].contains(&end),
            "{}",
            lines[2 + 2 * number]
        );
    }
}

/// The task that writes the log cannot run until the test's task waits. So the buffer of 1 MiB
/// fills, and further lines are lost and counted.
#[test]
fn what_the_disk_cannot_keep_up_with_is_lost_and_counted() {
    let scratch = Scratch::new("full");
    let rt = real_rt();
    rt.block_on(async {
        let sink = FileSink::open(&rt, &scratch.0).unwrap();
        let line = "x".repeat(1023);
        for _ in 0..2_000 {
            sink.line(&line);
        }
        sink.close().await.unwrap();
        // 1,024 lines of 1,024 bytes are 1 MiB.
        assert_eq!(sink.lost_lines(), 2_000 - 1_024);
        sink.line("late");
        assert_eq!(sink.lost_lines(), 2_000 - 1_024 + 1);
    });
    assert_eq!(std::fs::metadata(&scratch.0).unwrap().len(), 1 << 20);
}

#[test]
fn a_log_that_cannot_be_opened_is_one_line() {
    let rt = real_rt();
    let path = std::env::temp_dir().join("no-such-directory/x.log");
    let message = FileSink::open(&rt, &path).err().unwrap().to_string();
    assert!(message.contains("cannot open the log") && !message.contains('\n'));
}

/// Every write to Linux's `/dev/full` fails with ENOSPC.
#[test]
fn a_log_without_space_costs_lines_and_no_requests() {
    let rt = real_rt();
    rt.block_on(async {
        let sink = Rc::new(FileSink::open(&rt, Path::new("/dev/full")).unwrap());
        let memory = Rc::new(MemoryDevice::new(&rt, 1 << 20));
        let log = Log::new(&rt, memory, Rc::clone(&sink) as Rc<dyn LogSink>);
        for _ in 0..10 {
            log.submit(Request::read(0, 4096)).await.unwrap();
        }
        assert_eq!(log.close().await, Err(IoError::NoSpace));
        assert_eq!(sink.lost_lines(), 20);
        log.submit(Request::read(0, 4096)).await.unwrap();
        assert_eq!(sink.lost_lines(), 22);
    });
}
