//! Commands that a kernel driver defines for its own files (`IORING_OP_URING_CMD`), and pages that
//! the driver shares with this process.
//!
//! A short command has 16 bytes and is submitted to the runtime's ring, like a read or a write;
//! requests use short commands. A long command has up to 80 bytes and needs a ring with entries of
//! 128 bytes. Such entries in the runtime's ring would double the memory of every operation, so a
//! [`CommandFile`] has a small ring of its own, and the runtime's ring waits for completions of the
//! small ring. Control operations use long commands.
//!
//! This module must never interpret a command: the caller that sends the command specifies the
//! memory to which the driver is allowed to write.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::rc::Rc;

use io_uring::{IoUring, opcode, squeue, types};

use super::file::count;
use super::{DriverKind, File, Owned, Request, Watch};
use crate::buf::BufMut;
use crate::executor::Rt;
use crate::sync::Semaphore;

/// Size of a long command in bytes.
pub const LONG_COMMAND_BYTES: usize = 80;
/// Number of entries of the ring for long commands; only one long command is in flight at a time.
const LONG_COMMANDS: u32 = 2;

impl File {
    /// Sends a short command: `head`, followed by the address of `buf` in native byte order.
    /// Returns the driver's result and, in every case, the buffer.
    ///
    /// A driver can delay the completion of a command without limit, and can ignore a request to
    /// cancel the command. If the future is dropped, the operation remains in flight as an orphan
    /// until the driver completes the command.
    ///
    /// # Errors
    /// The errors that the driver returns.
    ///
    /// # Safety
    /// The driver must touch no memory of this process for this command except the bytes of `buf`,
    /// and none after it has completed the command.
    pub async unsafe fn command(
        &self,
        op: u32,
        head: [u8; 8],
        mut buf: BufMut,
    ) -> (io::Result<usize>, BufMut) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&head);
        bytes[8..].copy_from_slice(&(buf.start() as u64).to_ne_bytes());
        let request = Request::Command { op, bytes };
        match self.handle.ask(request, Owned::Fill(buf)).await {
            (result, Owned::Fill(buf)) => (count(result), buf),
            _ => unreachable!("an operation gives back what it owned"),
        }
    }

    /// Maps pages of this file into memory. The driver of the file writes these pages, and this
    /// process only reads them. `offset` and `len` are in bytes; `offset` is a multiple of the page
    /// size.
    ///
    /// # Errors
    /// The errors of `mmap(2)`.
    pub fn map_pages(&self, offset: u64, len: usize) -> io::Result<DriverPages> {
        let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a fresh mapping for reading, at no address in particular; the result is checked.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                self.as_fd().as_raw_fd(),
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).expect("a mapping is not at address zero");
        Ok(DriverPages { start, len })
    }
}

/// Pages that a driver writes and this process reads.
pub struct DriverPages {
    start: NonNull<u8>,
    len: usize,
}

impl DriverPages {
    /// Returns a copy of the `N` bytes that are at offset `at` of the pages now. The driver can
    /// change the bytes during the copy, so the caller's protocol with the driver must decide
    /// whether the copied bytes are consistent with each other.
    ///
    /// # Panics
    /// If the bytes do not lie in the pages.
    pub fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        let fits = at.checked_add(N).is_some_and(|end| end <= self.len);
        assert!(fits, "what is read lies in the pages");
        // SAFETY: the bytes lie in the mapping, and a byte array needs no alignment. The driver may
        // write to the bytes meanwhile, so the read is volatile: it happens exactly once, and the
        // compiler assumes nothing about the value.
        unsafe {
            self.start
                .as_ptr()
                .add(at)
                .cast::<[u8; N]>()
                .read_volatile()
        }
    }
}

impl Drop for DriverPages {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no other code refers to it.
        let result = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
        assert_eq!(result, 0, "unmapping the pages of a driver failed");
    }
}

/// A file that takes long commands, one at a time.
pub struct CommandFile {
    fd: OwnedFd,
    /// Watch that makes the runtime's main ring report completions of `ring`, the ring of this
    /// file.
    watch: Watch,
    ring: RefCell<IoUring<squeue::Entry128>>,
    /// Admits one command at a time.
    turn: Rc<Semaphore>,
    /// Data of the command in flight. It is kept even if the command's future is dropped, because
    /// the driver can still write to it.
    lent: RefCell<Option<Box<[u8]>>>,
}

impl CommandFile {
    /// Opens an existing file for reading and writing. Blocks, so use it at start-up only.
    ///
    /// # Errors
    /// The errors of `open(2)`. `Unsupported` in virtual time, if the driver in use is `threads`,
    /// or if the kernel has no rings with long entries (before Linux 5.19).
    pub fn open(rt: &Rt, path: &Path) -> io::Result<CommandFile> {
        if super::of(rt)?.driven().kind != DriverKind::Uring {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "commands to a driver of the kernel need io_uring, and the driver in use is \
                 \"threads\"",
            ));
        }
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)?;
        let built = IoUring::builder().build(LONG_COMMANDS);
        let ring = built.map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => io::ErrorKind::Unsupported.into(),
            _ => error,
        })?;
        // SAFETY: the ring owns the descriptor, and lives through the call.
        let watched = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
        Ok(CommandFile {
            fd: OwnedFd::from(file),
            watch: Watch::new(rt, watched)?,
            ring: RefCell::new(ring),
            turn: Semaphore::new(1),
            lent: RefCell::new(None),
        })
    }

    /// Sends a long command and waits for its completion. The address of `data`, in native byte
    /// order, is stored at byte `address_at` of the command. Returns `data`, possibly changed by
    /// the driver.
    ///
    /// A command whose future is dropped continues in the kernel, and the next command waits for
    /// its end.
    ///
    /// # Errors
    /// The errors that the driver returns.
    ///
    /// # Panics
    /// If the address does not fit into the command at `address_at`.
    ///
    /// # Safety
    /// The driver must touch no memory of this process for this command except the bytes of `data`,
    /// and none after it has completed the command.
    pub async unsafe fn command(
        &self,
        op: u32,
        mut command: [u8; LONG_COMMAND_BYTES],
        address_at: usize,
        mut data: Box<[u8]>,
    ) -> io::Result<Box<[u8]>> {
        let permit = self.turn.acquire(1).await;
        if self.lent.borrow().is_some() {
            self.completion().await?;
        }
        let address = (data.as_mut_ptr() as u64).to_ne_bytes();
        command[address_at..address_at + address.len()].copy_from_slice(&address);
        *self.lent.borrow_mut() = Some(data);
        let entry = opcode::UringCmd80::new(types::Fd(self.fd.as_raw_fd()), op)
            .cmd(command)
            .build();
        self.push(&entry)?;
        let (result, data) = self.completion().await?;
        drop(permit);
        count(result)?;
        Ok(data)
    }

    fn push(&self, entry: &squeue::Entry128) -> io::Result<()> {
        let mut ring = self.ring.borrow_mut();
        // SAFETY: the entry points at `lent`, which is kept until the completion has been seen, and
        // is leaked when the ring is dropped before that.
        let pushed = unsafe { ring.submission().push(entry) };
        pushed.expect("one command at a time fits in the ring");
        ring.submit().map(|_| ())
    }

    /// Waits for the completion of the command in flight. Returns the result and the data of the
    /// command.
    async fn completion(&self) -> io::Result<(i32, Box<[u8]>)> {
        loop {
            let completion = self.ring.borrow_mut().completion().next();
            if let Some(completion) = completion {
                let data = self.lent.borrow_mut().take();
                let data = data.expect("a command that completes was under way");
                return Ok((completion.result(), data));
            }
            self.watch.readable().await?;
        }
    }
}

impl Drop for CommandFile {
    fn drop(&mut self) {
        // If a command has not completed, the kernel can still write to the command's data. The
        // completion might never come, so the memory is leaked.
        if let Some(data) = self.lent.borrow_mut().take() {
            Box::leak(data);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::real_time::OpenOptions;
    use crate::{DriverChoice, UringOptions};

    /// Path of the null device, whose driver accepts every command, does nothing and returns 0
    /// (Linux 6.2).
    const NULL: &str = "/dev/null";

    /// Returns a runtime with the `io_uring` driver, the only driver that supports commands.
    fn real_time() -> Rt {
        runtime(DriverChoice::Uring)
    }

    fn runtime(driver: DriverChoice) -> Rt {
        let options = UringOptions {
            pool_bytes: 4 << 20,
            driver,
            ..UringOptions::default()
        };
        Rt::real_time(options).unwrap()
    }

    #[test]
    fn threads_refuse_commands() {
        let rt = runtime(DriverChoice::Threads);
        let error = CommandFile::open(&rt, Path::new(NULL)).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("\"threads\""), "{error}");
        let options = OpenOptions {
            write: true,
            direct: false,
        };
        let file = File::open(&rt, Path::new(NULL), options).unwrap();
        // SAFETY: the command reaches no driver.
        let sent = unsafe { file.command(1, [0; 8], rt.pool().alloc_now(4096)) };
        let (result, buf) = rt.block_on(sent);
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
        assert_eq!(buf.len(), 4096);
    }

    /// Creates a file of 8 KiB. The value of each byte is its offset divided by 16, modulo 256.
    fn numbered(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("bimetal-{}-{name}", std::process::id()));
        let bytes: Vec<u8> = (0..8192).map(|at| (at / 16) as u8).collect();
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(&bytes).unwrap();
        path
    }

    #[test]
    fn a_short_command_gives_its_buffer_back() {
        let rt = real_time();
        let options = OpenOptions {
            write: true,
            direct: false,
        };
        let file = File::open(&rt, Path::new(NULL), options).unwrap();
        let mut buf = rt.pool().alloc_now(4096);
        buf[7] = 9;
        // SAFETY: the null device touches no memory.
        let (result, buf) = rt.block_on(unsafe { file.command(1, [0; 8], buf) });
        assert_eq!((result.unwrap(), buf.len(), buf[7]), (0, 4096, 9));
    }

    #[test]
    fn long_commands_go_one_after_another() {
        let rt = real_time();
        let file = CommandFile::open(&rt, Path::new(NULL)).unwrap();
        for number in 0..20_u8 {
            let data = Box::from([number; 100]);
            // SAFETY: the null device touches no memory.
            let sent = unsafe { file.command(1, [0; LONG_COMMAND_BYTES], 8, data) };
            assert_eq!(*rt.block_on(sent).unwrap(), [number; 100]);
        }
    }

    #[test]
    fn a_file_without_commands_refuses_them() {
        let rt = real_time();
        let path = numbered("commands");
        let file = CommandFile::open(&rt, &path).unwrap();
        // SAFETY: an ordinary file takes no command.
        let sent = unsafe { file.command(1, [0; LONG_COMMAND_BYTES], 0, Box::default()) };
        let error = rt.block_on(sent).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
    }

    #[test]
    fn pages_are_read_where_they_are() {
        let rt = real_time();
        let path = numbered("pages");
        let options = OpenOptions {
            write: false,
            direct: false,
        };
        let file = File::open(&rt, &path, options).unwrap();
        let pages = file.map_pages(4096, 4096).unwrap();
        std::fs::remove_file(&path).unwrap();
        // Each group of 16 bytes of the file holds the group's number modulo 256. From file offset
        // 4096 + 30 on, there are two bytes of group 257 (value 1) and then two bytes of group 258
        // (value 2).
        assert_eq!(pages.read::<4>(30), [1, 1, 2, 2]);
        assert_eq!(pages.read::<2>(4094), [255, 255]);
        let beyond =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pages.read::<4>(4093)));
        assert!(beyond.is_err());
    }
}
