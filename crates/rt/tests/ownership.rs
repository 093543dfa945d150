//! Tests of the ownership contract of submitted operations (see the documentation of the crate):
//! dropping a future, at any time, never frees or reuses memory that the kernel can still access.
//! AddressSanitizer reports a violation. Without AddressSanitizer, a write to the wrong memory
//! shows as a wrong byte.

use std::io::{ErrorKind, Write as _};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::task::Poll;
use std::time::Duration;

use bimetal_rt::net::Stream;
use bimetal_rt::real_time::{File, MessageFile, OpenOptions};
use bimetal_rt::{BufPool, Rng, Rt, UringOptions};

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;

/// A file in which every byte of a block is the block's number.
struct NumberedFile(PathBuf);

impl NumberedFile {
    fn new(name: &str) -> NumberedFile {
        let path = std::env::temp_dir().join(format!("bimetal-{}-{name}", std::process::id()));
        let mut file = std::fs::File::create(&path).unwrap();
        for number in 0..BLOCKS {
            file.write_all(&[number as u8; BLOCK]).unwrap();
        }
        NumberedFile(path)
    }
}

impl Drop for NumberedFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

fn real_rt(register: bool) -> Rt {
    Rt::real_time(UringOptions {
        pool_bytes: 4 << 20,
        seed: 1,
        register,
        ..UringOptions::default()
    })
    .unwrap()
}

/// Starts 32 reads, drops half of them while they are in flight, and checks the content that the
/// other half returns; repeats this thousands of times. Buffers are reused immediately, so a kernel
/// write into a freed buffer would change the content of another read.
fn drop_half_of_the_reads(register: bool) {
    let numbered = NumberedFile::new(if register { "fixed" } else { "plain" });
    let rt = real_rt(register);
    let file = File::open(
        &rt,
        &numbered.0,
        OpenOptions {
            write: false,
            direct: false,
        },
    )
    .unwrap();
    let file = std::rc::Rc::new(file);
    let mut rng = Rng::new(11);
    for _ in 0..2_000 {
        let reads: Vec<_> = (0..32)
            .map(|_| {
                let number = rng.below(BLOCKS as u64);
                let (file, rt2) = (file.clone(), rt.clone());
                rt.spawn(async move {
                    let buf = rt2.pool().alloc_now(BLOCK);
                    let (count, buf) = file.read_at(number * BLOCK as u64, buf).await;
                    assert_eq!(count.unwrap(), BLOCK);
                    assert!(buf.iter().all(|&byte| u64::from(byte) == number));
                    drop(buf);
                })
            })
            .collect();
        rt.block_on(async {
            bimetal_rt::yield_now().await;
            for (place, read) in reads.into_iter().enumerate() {
                if place % 2 == 0 {
                    drop(read);
                } else {
                    read.await;
                }
            }
        });
    }
    rt.block_on(rt.sleep(Duration::from_millis(1)));
    rt.drain();
    assert_eq!(rt.operations_in_flight(), 0, "every slot came back");
    assert_eq!(rt.live_tasks(), 0);
    drop(file);
    assert_eq!(
        (rt.pool().region_bytes_used(), rt.pool().heap_bytes_used()),
        (0, 0)
    );
}

#[test]
fn dropped_reads_keep_their_buffers_registered() {
    drop_half_of_the_reads(true);
}

#[test]
fn dropped_reads_keep_their_buffers_unregistered() {
    drop_half_of_the_reads(false);
}

/// Drops a read after it was started and before the kernel has been entered. Then buffers of the
/// same size are allocated and filled with a mark. If the read's buffer was freed too early, one of
/// these buffers is the read's buffer, and the kernel's late write overwrites the mark in it. This
/// test detects the error even without a sanitizer.
#[test]
fn the_buffer_of_a_dropped_read_does_not_come_back_before_its_completion() {
    const MARK: u8 = 0xee;
    let numbered = NumberedFile::new("late");
    for register in [true, false] {
        let rt = real_rt(register);
        let options = OpenOptions {
            write: false,
            direct: false,
        };
        let file = File::open(&rt, &numbered.0, options).unwrap();
        for round in 0..2_000u64 {
            let offset = round % BLOCKS as u64 * BLOCK as u64;
            let marked: Vec<_> = rt.block_on(async {
                let mut read = Box::pin(file.read_at(offset, rt.pool().alloc_now(BLOCK)));
                let polled = poll_once(read.as_mut()).await;
                assert!(polled.is_pending(), "the kernel has not been entered yet");
                drop(read);
                let take = |_| {
                    let mut buf = rt.pool().alloc_now(BLOCK);
                    buf.fill(MARK);
                    buf.freeze()
                };
                (0..4).map(take).collect()
            });
            rt.drain();
            let untouched = marked
                .iter()
                .all(|buf| buf.iter().all(|&byte| byte == MARK));
            assert!(
                untouched,
                "round {round}: the kernel wrote into a buffer's next life"
            );
        }
        drop(file);
        assert_eq!(rt.operations_in_flight(), 0);
        assert_eq!(rt.pool().region_bytes_used(), 0);
    }
}

/// Polls a future once and returns the result of the poll.
async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

/// Tests a dropped receive whose data arrives after the buffer has been reused: the kernel must not
/// write the data into that buffer. The stream is allowed to lose these bytes, but other memory
/// must not be overwritten.
#[test]
fn a_dropped_receive_never_writes_into_a_reused_buffer() {
    let rt = real_rt(true);
    for round in 0..500u32 {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let stream = std::rc::Rc::new(Stream::from_unix(&rt, ours).unwrap());
        let receive = {
            let (stream, rt2) = (stream.clone(), rt.clone());
            rt.spawn(async move { stream.recv(rt2.pool().alloc_now(BLOCK), 0).await.0 })
        };
        rt.block_on(bimetal_rt::yield_now());
        if round % 3 == 0 {
            rt.block_on(rt.sleep(Duration::from_micros(10)));
        }
        rt.block_on(receive.cancel());
        theirs.write_all(&[0xee; BLOCK]).unwrap();
        let next: Vec<_> = (0..8).map(|_| rt.pool().zeroed(BLOCK)).collect();
        rt.drain();
        assert!(next.iter().all(|buf| buf.iter().all(|&byte| byte == 0)));
    }
    assert_eq!(rt.pool().region_bytes_used(), 0);
}

/// Tests buffers of another pool, such as that of a cache: they can be read and written, although
/// only the pool of the runtime is registered with its ring. Operations must not use them as
/// registered buffers.
#[test]
fn buffers_of_another_pool_are_read_and_written() {
    let numbered = NumberedFile::new("other-pool");
    let rt = real_rt(true);
    let options = OpenOptions {
        write: true,
        direct: false,
    };
    let file = File::open(&rt, &numbered.0, options).unwrap();
    let other = BufPool::new(4 << 20).unwrap();
    rt.block_on(async {
        let payload = other.copy_of(&[0xee; BLOCK]).into();
        let count = file.write_at(BLOCK as u64, payload, false).await;
        assert_eq!(count.unwrap(), BLOCK);
        let (count, buf) = file.read_at(BLOCK as u64, other.alloc_now(BLOCK)).await;
        assert_eq!(count.unwrap(), BLOCK);
        assert_eq!(&buf[..], [0xee; BLOCK]);
    });
    drop(file);
    assert_eq!(other.heap_bytes_used(), 0, "they were not of the heap");
}

#[test]
fn writes_and_reads_agree_and_a_wait_ends_in_time() {
    let numbered = NumberedFile::new("write");
    let rt = real_rt(true);
    let file = File::open(
        &rt,
        &numbered.0,
        OpenOptions {
            write: true,
            direct: false,
        },
    )
    .unwrap();
    rt.block_on(async {
        let mut payload = bimetal_rt::Payload::empty();
        for byte in [1u8, 2, 3] {
            payload.push(rt.pool().copy_of(&[byte; BLOCK]));
        }
        let expected = payload.to_vec();
        assert_eq!(
            file.write_at(BLOCK as u64, payload, true).await.unwrap(),
            3 * BLOCK
        );
        file.sync_data().await.unwrap();
        let (count, buf) = file
            .read_at(BLOCK as u64, rt.pool().alloc_now(3 * BLOCK))
            .await;
        assert_eq!(count.unwrap(), 3 * BLOCK);
        assert_eq!(&buf[..], &expected[..]);
        file.punch_hole(0, BLOCK as u64).await.unwrap();
        assert!(
            !file.run_at(0, (BLOCKS * BLOCK) as u64).unwrap().0,
            "a punched run is a hole"
        );
        let before = rt.now();
        rt.sleep(Duration::from_millis(5)).await;
        assert!(rt.now().since(before) >= Duration::from_millis(5));
    });
    // The number of operations exceeds the entries of the submission queue.
    let reads = (0..5_000).map(|_| file.read_at(0, rt.pool().alloc_now(BLOCK)));
    let results = rt.block_on(futures_util::future::join_all(reads));
    assert!(
        results
            .iter()
            .all(|(count, _)| *count.as_ref().unwrap() == BLOCK)
    );
}

/// Submits a write of a message to a file, and drops the write and the file before the driver has
/// started the write. The next opened file gets the same descriptor number, and must not receive
/// the message.
#[test]
fn a_dropped_write_never_lands_in_the_next_file() {
    for register in [true, false] {
        let rt = real_rt(register);
        for round in 0..100 {
            let (ours, _theirs) = UnixDatagram::pair().unwrap();
            let file = MessageFile::new(&rt, ours.into()).unwrap();
            rt.block_on(async {
                let message = rt.pool().copy_of(b"for the first").into();
                let mut write = Box::pin(file.write(message));
                let polled = poll_once(write.as_mut()).await;
                assert!(polled.is_pending(), "no operation ends when it is begun");
            });
            drop(file);
            let (next, peer) = UnixDatagram::pair().unwrap();
            rt.drain();
            peer.set_nonblocking(true).unwrap();
            let received = peer.recv(&mut [0; 32]).map_err(|error| error.kind());
            assert_eq!(received, Err(ErrorKind::WouldBlock), "round {round}");
            drop(next);
        }
    }
}
