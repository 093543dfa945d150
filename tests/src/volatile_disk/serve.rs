//! The NBD server of the volatile disk: the part of the protocol (the NBD project's doc/proto.md)
//! that a client without structured replies needs. It shares no code with the codec under test.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use super::cache::SECTOR_BYTES;
use super::device::{Command, Device};
use crate::nbd::{
    CLIENT_FLAGS, FUA, IHAVEOPT, NBDMAGIC, OPTION_REPLY_MAGIC, REQUEST_MAGIC, cmd, errno, opt, rep,
};

/// Maximum sizes in bytes: `OPTION_MAX` is that of an option's data, and `PAYLOAD_MAX` is that of
/// the payload of a request.
const OPTION_MAX: u32 = 64 << 10;
const PAYLOAD_MAX: u32 = 32 << 20;

/// Transmission flags HAS_FLAGS, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES and
/// CAN_MULTI_CONN.
const TRANSMISSION_FLAGS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8;

/// Information types NBD_INFO_EXPORT and NBD_INFO_BLOCK_SIZE.
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

/// Accepts connections and starts a thread for each of them. Returns only if accept(2) fails, with
/// its error.
pub fn accept(listener: &UnixListener, device: &Arc<Device>) -> Error {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => Arc::new(stream),
            Err(error) => return error,
        };
        let device = Arc::clone(device);
        std::thread::spawn(move || {
            // A client that does not read its replies must not block the other clients forever.
            let patience = stream.set_write_timeout(Some(Duration::from_secs(20)));
            patience.expect("a time-out above zero");
            let number = device.connect(Arc::clone(&stream));
            // A failure of a connection concerns only its own client: the disk continues to serve
            // the other clients.
            let _ = converse(&mut &*stream, number, &device);
            device.disconnect(number);
            // The worker thread can still hold the socket for a reply. The shutdown makes the end
            // of the connection visible to the client immediately.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        });
    }
}

fn converse(stream: &mut &UnixStream, number: u64, device: &Device) -> Result<()> {
    if !handshake(stream, device.size_bytes())? {
        return Ok(());
    }
    loop {
        let head: [u8; 28] = take(stream)?;
        if be(&head[..4]) != u64::from(REQUEST_MAGIC) {
            return Err(ErrorKind::InvalidData.into());
        }
        let (flags, command) = (be(&head[4..6]) as u16, be(&head[6..8]) as u16);
        let (cookie, offset) = (be(&head[8..16]), be(&head[16..24]));
        let length = be(&head[24..28]) as u32;
        if command == cmd::DISC {
            return Ok(());
        }
        let mut payload = Vec::new();
        if command == cmd::WRITE {
            payload = take_vec(stream, length, PAYLOAD_MAX)?;
        }
        let command = checked(command, flags, (offset, length), payload, device);
        if !device.submit(number, cookie, command) {
            return Ok(());
        }
    }
}

/// Validates a request. Returns the command for the device; for an invalid request, this is a
/// `Refuse` command with the error.
fn checked(
    command: u16,
    flags: u16,
    (offset, length): (u64, u32),
    payload: Vec<u8>,
    device: &Device,
) -> Command {
    if command == cmd::FLUSH {
        return Command::Flush;
    }
    let whole = offset.is_multiple_of(SECTOR_BYTES)
        && u64::from(length).is_multiple_of(SECTOR_BYTES)
        && length > 0;
    let end = offset.checked_add(u64::from(length));
    if !whole || end.is_none_or(|end| end > device.size_bytes()) {
        let beyond = whole && matches!(command, cmd::WRITE | cmd::WRITE_ZEROES);
        return Command::Refuse(if beyond { errno::ENOSPC } else { errno::EINVAL });
    }
    let fua = flags & FUA != 0;
    let write = |bytes| Command::Write { offset, bytes, fua };
    match command {
        cmd::READ if length <= PAYLOAD_MAX => Command::Read {
            offset,
            length: length as usize,
        },
        cmd::WRITE => write(payload),
        // The protocol allows any content after a trim. This disk writes zeroes.
        cmd::TRIM | cmd::WRITE_ZEROES => write(vec![0; length as usize]),
        _ => Command::Refuse(errno::EINVAL),
    }
}

/// Performs the newstyle negotiation. Returns true if the transmission phase follows, false if the
/// client has aborted the negotiation.
fn handshake(stream: &mut &UnixStream, size_bytes: u64) -> Result<bool> {
    let mut greeting = NBDMAGIC.to_be_bytes().to_vec();
    greeting.extend(IHAVEOPT.to_be_bytes());
    greeting.extend((CLIENT_FLAGS as u16).to_be_bytes());
    stream.write_all(&greeting)?;
    let flags: [u8; 4] = take(stream)?;
    let no_zeroes = be(&flags) & 2 != 0;
    loop {
        let head: [u8; 16] = take(stream)?;
        if be(&head[..8]) != IHAVEOPT {
            return Err(ErrorKind::InvalidData.into());
        }
        let (option, length) = (be(&head[8..12]) as u32, be(&head[12..16]) as u32);
        let data = take_vec(stream, length, OPTION_MAX)?;
        match option {
            opt::EXPORT_NAME => {
                let mut answer = export(size_bytes)[2..].to_vec();
                answer.resize(if no_zeroes { 10 } else { 134 }, 0);
                stream.write_all(&answer)?;
                return Ok(true);
            }
            opt::ABORT => {
                stream.write_all(&option_reply(option, rep::ACK, &[]))?;
                return Ok(false);
            }
            opt::INFO | opt::GO => {
                let mut answer = option_reply(option, rep::INFO, &export(size_bytes));
                if wants_block_sizes(&data) {
                    answer.extend(option_reply(option, rep::INFO, &block_sizes()));
                }
                answer.extend(option_reply(option, rep::ACK, &[]));
                stream.write_all(&answer)?;
                if option == opt::GO {
                    return Ok(true);
                }
            }
            _ => stream.write_all(&option_reply(option, rep::ERR_UNSUP, &[]))?,
        }
    }
}

/// Returns the data of the information NBD_INFO_EXPORT. The disk has only one export, which every
/// export name selects.
fn export(size_bytes: u64) -> Vec<u8> {
    let mut info = INFO_EXPORT.to_be_bytes().to_vec();
    info.extend(size_bytes.to_be_bytes());
    info.extend(TRANSMISSION_FLAGS.to_be_bytes());
    info
}

/// Returns the data of the information NBD_INFO_BLOCK_SIZE: minimum, preferred and maximum block
/// size.
fn block_sizes() -> Vec<u8> {
    let mut info = INFO_BLOCK_SIZE.to_be_bytes().to_vec();
    for bytes in [SECTOR_BYTES as u32, 4096, PAYLOAD_MAX] {
        info.extend(bytes.to_be_bytes());
    }
    info
}

/// Returns whether the option data of NBD_OPT_GO request the block sizes. In the option data, the
/// export name is followed by a count and by that number of information types.
fn wants_block_sizes(data: &[u8]) -> bool {
    let Some((length, rest)) = data.split_at_checked(4) else {
        return false;
    };
    let wishes = rest.get(be(length) as usize..).and_then(|r| r.get(2..));
    let mut wishes = wishes.unwrap_or_default().chunks_exact(2);
    wishes.any(|wish| be(wish) == u64::from(INFO_BLOCK_SIZE))
}

fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut reply = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    for number in [option, kind, data.len() as u32] {
        reply.extend(number.to_be_bytes());
    }
    reply.extend(data);
    reply
}

fn take<const COUNT: usize>(stream: &mut impl Read) -> Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Receives `length` bytes; fails if `length` exceeds `most`.
fn take_vec(stream: &mut impl Read, length: u32, most: u32) -> Result<Vec<u8>> {
    if length > most {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Returns the value of a big-endian number of up to eight bytes.
fn be(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}
