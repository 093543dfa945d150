//! Files of drivers that exchange whole messages, such as `/dev/fuse`: each read returns one
//! message, and each write sends one message.
//!
//! A message is read into two parts, so the data that follows a head of known length lies in an
//! aligned buffer of the pool and can be passed on without a copy. Requests on such files never
//! refer to registered buffers: a driver that copies from and to the pages of a process (as FUSE
//! does) accepts addresses only.
//!
//! This module must never interpret a message.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::file::count;
use super::op::Gather;
use super::{Handle, Owned, Request, set_nonblocking};
use crate::buf::{BufMut, Payload};
use crate::executor::Rt;

/// Maximum number of slices in one vectored write; the kernel's `UIO_MAXIOV`.
const VECTORS_MAX: usize = 1024;

/// A buffer that a message is read into.
pub struct MessageBuf {
    head: Box<[u8]>,
    /// `None` only while it is being replaced.
    body: Option<BufMut>,
    vectors: [libc::iovec; 2],
}

impl MessageBuf {
    /// Creates a buffer for a message: the first `head_bytes` bytes are read into the head, and the
    /// rest, at most the length of `body`, into `body`.
    pub fn new(head_bytes: usize, body: BufMut) -> Box<MessageBuf> {
        let nothing = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Box::new(MessageBuf {
            head: vec![0; head_bytes].into_boxed_slice(),
            body: Some(body),
            vectors: [nothing; 2],
        })
    }

    /// Returns the first bytes of the message.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the bytes after the head.
    pub fn body(&self) -> &[u8] {
        self.body.as_ref().expect("the buffer has a body")
    }

    /// Takes the body out. No message can be read into the buffer until [another
    /// body](Self::put_body) is put in.
    ///
    /// # Panics
    /// If the body was already taken.
    pub fn take_body(&mut self) -> BufMut {
        self.body.take().expect("the body is there")
    }

    /// Puts a body in.
    pub fn put_body(&mut self, body: BufMut) {
        self.body = Some(body);
    }

    /// Returns the vectors that describe the head and the body to the kernel. The described memory
    /// stays in place when the box moves.
    fn describe(&mut self) -> *const libc::iovec {
        let body = self.body.as_mut().expect("the buffer has a body");
        self.vectors = [
            libc::iovec {
                iov_base: self.head.as_mut_ptr().cast(),
                iov_len: self.head.len(),
            },
            libc::iovec {
                iov_base: body.start().cast(),
                iov_len: body.len(),
            },
        ];
        self.vectors.as_ptr()
    }
}

/// An open file of a driver that exchanges messages.
pub struct MessageFile {
    handle: Handle,
}

impl MessageFile {
    /// Takes ownership of an open file and makes it nonblocking. The kernel then polls the file for
    /// messages, instead of blocking a kernel thread in a read.
    ///
    /// # Errors
    /// The errors of `fcntl(2)`; `Unsupported` in virtual time.
    pub fn new(rt: &Rt, fd: OwnedFd) -> io::Result<MessageFile> {
        set_nonblocking(fd.as_fd())?;
        Ok(MessageFile {
            handle: Handle::new(rt, fd)?,
        })
    }

    /// Waits for a message and reads it into `buf`: the head is filled first, and then the body.
    /// Returns the number of bytes read or the error, and always returns the buffer.
    ///
    /// # Errors
    /// The errors of `readv(2)`.
    pub async fn read(&self, mut buf: Box<MessageBuf>) -> (io::Result<usize>, Box<MessageBuf>) {
        loop {
            let request = Request::ReadMessage {
                vectors: buf.describe(),
                count: 2,
            };
            let (result, owned) = self.handle.ask(request, Owned::Message(buf)).await;
            let Owned::Message(back) = owned else {
                unreachable!("an operation gives back what it owned")
            };
            buf = back;
            if result != -libc::EAGAIN {
                return (count(result), buf);
            }
            // If a nonblocking file has no message, this kernel returns `EAGAIN` instead of
            // waiting. Therefore wait until the file is readable, and then read again.
            if let Err(error) = self.readable().await {
                return (Err(error), buf);
            }
        }
    }

    async fn readable(&self) -> io::Result<()> {
        let watched = self.handle.ask(Request::Readable, Owned::Nothing).await;
        count(watched.0).map(|_| ())
    }

    /// Writes a message with one system call.
    ///
    /// # Errors
    /// The errors of `writev(2)`; `WriteZero` if the driver accepted only a part.
    ///
    /// # Panics
    /// If the message has more slices than the kernel accepts (1,024).
    pub async fn write(&self, message: Payload) -> io::Result<()> {
        assert!(
            message.slices().len() <= VECTORS_MAX,
            "a message is one write"
        );
        let gather = Gather::new(message, 0, VECTORS_MAX);
        let bytes = gather.bytes();
        let request = Request::WriteMessage {
            vectors: gather.vectors.as_ptr(),
            count: gather.vectors.len() as u32,
        };
        let (result, _) = self.handle.ask(request, Owned::Gather(gather)).await;
        if count(result)? < bytes {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::rc::Rc;

    use super::*;
    use crate::{UringOptions, sync::TaskGroup};

    fn real_time() -> Rt {
        let options = UringOptions {
            pool_bytes: 4 << 20,
            ..UringOptions::default()
        };
        Rt::real_time(options).unwrap()
    }

    /// Returns a message file and its peer. They are the two ends of a pair of datagram sockets, in
    /// which each datagram is a message.
    fn pair(rt: &Rt) -> (MessageFile, UnixDatagram) {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        (MessageFile::new(rt, ours.into()).unwrap(), theirs)
    }

    #[test]
    fn a_message_fills_the_head_first() {
        let rt = real_time();
        let (file, theirs) = pair(&rt);
        theirs.send(b"head+body").unwrap();
        let buf = MessageBuf::new(5, rt.pool().alloc_now(4096));
        let (read, mut buf) = rt.block_on(file.read(buf));
        assert_eq!(read.unwrap(), 9);
        assert_eq!(
            (buf.head(), &buf.body()[..4]),
            (&b"head+"[..], &b"body"[..])
        );
        let body = buf.take_body();
        assert_eq!(&body[..4], b"body");
        // A short message leaves the body as it was.
        buf.put_body(body);
        theirs.send(b"he").unwrap();
        let (read, buf) = rt.block_on(file.read(buf));
        assert_eq!(
            (read.unwrap(), &buf.head()[..2], &buf.body()[..4]),
            (2, &b"he"[..], &b"body"[..])
        );
    }

    #[test]
    fn a_message_of_several_slices_is_one() {
        let rt = real_time();
        let (file, theirs) = pair(&rt);
        let mut message = Payload::from(rt.pool().copy_of(b"one,"));
        message.push(rt.pool().copy_of(b"two"));
        rt.block_on(file.write(message)).unwrap();
        let mut got = [0; 16];
        let bytes = theirs.recv(&mut got).unwrap();
        assert_eq!(&got[..bytes], b"one,two");
    }

    #[test]
    fn reads_wait_side_by_side_and_each_takes_one_message() {
        let rt = real_time();
        let (file, theirs) = pair(&rt);
        let file = Rc::new(file);
        let got = Rc::new(std::cell::RefCell::new(Vec::new()));
        let group = TaskGroup::new(&rt);
        for _ in 0..3 {
            let (file, got, pool) = (Rc::clone(&file), Rc::clone(&got), rt.pool().clone());
            group.spawn(async move {
                let (read, buf) = file.read(MessageBuf::new(1, pool.alloc_now(4096))).await;
                assert_eq!(read.unwrap(), 1);
                got.borrow_mut().push(buf.head()[0]);
            });
        }
        rt.block_on(crate::yield_now());
        for number in [1, 2, 3] {
            theirs.send(&[number]).unwrap();
        }
        rt.block_on(group.join());
        got.borrow_mut().sort_unstable();
        assert_eq!(*got.borrow(), [1, 2, 3]);
    }

    #[test]
    fn a_read_that_nobody_waits_for_is_given_up() {
        let rt = real_time();
        let (file, _theirs) = pair(&rt);
        let buf = MessageBuf::new(1, rt.pool().alloc_now(4096));
        let task = rt.spawn(async move { file.read(buf).await.0.is_ok() });
        rt.block_on(crate::yield_now());
        rt.block_on(task.cancel());
        rt.drain();
        assert_eq!(rt.operations_in_flight(), 0);
    }
}
