//! The layouts and numbers of the kernel's `linux/ublk_cmd.h`: the commands to `/dev/ublk-control`,
//! the commands by which a queue fetches requests and commits results, and the driver's request
//! descriptors.
//!
//! All numbers are in the machine's byte order. This module must never do I/O, and does not trust
//! the driver's input.

use bimetal_block::Op;

/// Sector size of Linux's block layer in bytes.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Bytes of `struct ublksrv_ctrl_cmd`.
pub(super) const CONTROL_COMMAND_BYTES: usize = 32;
/// Offset of the data address in `struct ublksrv_ctrl_cmd`.
pub(super) const CONTROL_ADDRESS_AT: usize = 8;
/// Bytes of `struct ublksrv_ctrl_dev_info`.
pub(super) const DEVICE_INFO_BYTES: usize = 64;
/// Bytes of `struct ublksrv_io_desc`.
pub(super) const DESCRIPTOR_BYTES: usize = 24;
/// Bytes of `struct ublksrv_io_cmd`.
const IO_COMMAND_BYTES: usize = 16;
/// Maximum queue depth that the driver accepts (`UBLK_MAX_QUEUE_DEPTH`).
pub(super) const QUEUE_DEPTH_MAX: u16 = 4096;
/// Device number that lets the driver choose a number when a device is added.
pub(super) const ANY_NUMBER: u32 = u32::MAX;
/// Queue number in commands that do not concern a particular queue.
const NO_QUEUE: u16 = u16::MAX;

/// Encodes the number of a command as the macros `_IOR` and `_IOWR` of `linux/ioctl.h` do, from the
/// direction of the transfer, the number within the driver, and the size of the argument.
const fn encoded(direction: u32, number: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (b'u' as u32) << 8 | number
}

const READ: u32 = 2;
const READ_WRITE: u32 = 3;

/// A command to `/dev/ublk-control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    AddDevice,
    DeleteDevice,
    StartDevice,
    StopDevice,
    SetParameters,
    DeviceInfo,
    /// Does the same as [`DeleteDevice`](Self::DeleteDevice), but does not wait for processes that
    /// have the device open.
    DeleteDeviceAsync,
}

impl Control {
    /// Returns the number of the command.
    pub(super) fn op(self) -> u32 {
        let (direction, number) = match self {
            Control::AddDevice => (READ_WRITE, 0x04),
            Control::DeleteDevice => (READ_WRITE, 0x05),
            Control::StartDevice => (READ_WRITE, 0x06),
            Control::StopDevice => (READ_WRITE, 0x07),
            Control::SetParameters => (READ_WRITE, 0x08),
            Control::DeviceInfo => (READ, 0x12),
            Control::DeleteDeviceAsync => (READ, 0x14),
        };
        encoded(direction, number, CONTROL_COMMAND_BYTES)
    }

    /// Returns a description of the command for error messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Control::AddDevice => "adding the device",
            Control::DeleteDevice | Control::DeleteDeviceAsync => "deleting the device",
            Control::StartDevice => "starting the device",
            Control::StopDevice => "stopping the device",
            Control::SetParameters => "setting the parameters",
            Control::DeviceInfo => "asking about the device",
        }
    }
}

/// `struct ublksrv_ctrl_cmd` without the data address. The code that owns the data writes the
/// address.
pub(super) struct ControlCommand {
    /// The number of the device.
    pub(super) number: u32,
    /// Number of data bytes at the address.
    pub(super) data_bytes: u16,
    /// Argument that is passed in the command itself.
    pub(super) argument: u64,
    /// Length in bytes of the path of the device's file; 0 if there is no path. The path is at the
    /// start of the data that the command points at.
    pub(super) path_bytes: u16,
}

impl ControlCommand {
    pub(super) fn encode(&self) -> [u8; CONTROL_COMMAND_BYTES] {
        let mut out = [0; CONTROL_COMMAND_BYTES];
        out[0..4].copy_from_slice(&self.number.to_ne_bytes());
        out[4..6].copy_from_slice(&NO_QUEUE.to_ne_bytes());
        out[6..8].copy_from_slice(&self.data_bytes.to_ne_bytes());
        out[16..24].copy_from_slice(&self.argument.to_ne_bytes());
        out[24..26].copy_from_slice(&self.path_bytes.to_ne_bytes());
        out
    }
}

/// The used fields of `struct ublksrv_ctrl_dev_info`. Because no feature flag is set, the driver
/// copies the data of requests, and a device fails its requests after its server has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceInfo {
    pub(super) queues: u16,
    pub(super) queue_depth: u16,
    /// Maximum length of a transfer in bytes.
    pub(super) buffer_bytes: u32,
    pub(super) number: u32,
    /// Process ID of the device's server, as reported by the driver. The driver ignores the field
    /// when a device is added.
    pub(super) server: i32,
}

impl DeviceInfo {
    pub(super) fn encode(&self) -> [u8; DEVICE_INFO_BYTES] {
        let mut out = [0; DEVICE_INFO_BYTES];
        out[0..2].copy_from_slice(&self.queues.to_ne_bytes());
        out[2..4].copy_from_slice(&self.queue_depth.to_ne_bytes());
        out[8..12].copy_from_slice(&self.buffer_bytes.to_ne_bytes());
        out[12..16].copy_from_slice(&self.number.to_ne_bytes());
        out[16..20].copy_from_slice(&self.server.to_ne_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8; DEVICE_INFO_BYTES]) -> DeviceInfo {
        DeviceInfo {
            queues: u16::from_ne_bytes(part(bytes, 0)),
            queue_depth: u16::from_ne_bytes(part(bytes, 2)),
            buffer_bytes: u32::from_ne_bytes(part(bytes, 8)),
            number: u32::from_ne_bytes(part(bytes, 12)),
            server: i32::from_ne_bytes(part(bytes, 16)),
        }
    }
}

/// Returns the `N` bytes at offset `at`.
///
/// # Panics
/// If `bytes` is shorter than `at + N`. Callers pass complete structures.
pub(super) fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Bits of `ublk_param_basic.attrs`.
mod attribute {
    pub(super) const READ_ONLY: u32 = 1 << 0;
    pub(super) const ROTATIONAL: u32 = 1 << 1;
    pub(super) const VOLATILE_CACHE: u32 = 1 << 2;
    pub(super) const FUA: u32 = 1 << 3;
}

/// Bits of `ublk_params.types`.
mod parameter {
    pub(super) const BASIC: u32 = 1 << 0;
    pub(super) const DISCARD: u32 = 1 << 1;
}

/// Size of `struct ublk_params` in bytes up to the end of its discard parameters.
const PARAMETERS_BYTES: usize = 60;

/// `struct ublk_params`: the parameters of a device for the kernel. All lengths are in bytes. A
/// length that the kernel stores as a shift must be a power of two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    pub(super) size_bytes: u64,
    pub(super) read_only: bool,
    pub(super) rotational: bool,
    pub(super) logical_block_bytes: u32,
    pub(super) physical_block_bytes: u32,
    /// Request size in bytes that the device handles best.
    pub(super) preferred_bytes: u32,
    pub(super) transfer_bytes_max: u32,
    /// Maximum length of a discard or write-zeroes in bytes.
    pub(super) range_bytes_max: u64,
}

impl Parameters {
    pub(super) fn encode(&self) -> [u8; PARAMETERS_BYTES] {
        let mut out = [0; PARAMETERS_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(PARAMETERS_BYTES as u32).to_ne_bytes());
        put(4, &(parameter::BASIC | parameter::DISCARD).to_ne_bytes());
        put(8, &self.attributes().to_ne_bytes());
        put(12, &[shift(self.logical_block_bytes)]);
        put(13, &[shift(self.physical_block_bytes)]);
        put(14, &[shift(self.preferred_bytes)]);
        put(15, &[shift(self.physical_block_bytes)]);
        put(
            16,
            &sectors(u64::from(self.transfer_bytes_max)).to_ne_bytes(),
        );
        put(24, &(self.size_bytes / SECTOR_BYTES).to_ne_bytes());
        put(44, &self.physical_block_bytes.to_ne_bytes());
        put(48, &sectors(self.range_bytes_max).to_ne_bytes());
        put(52, &sectors(self.range_bytes_max).to_ne_bytes());
        // The driver supports only one range per discard.
        put(56, &1_u16.to_ne_bytes());
        out
    }

    /// Returns the attribute bits. Every device is reported to have a volatile cache and to support
    /// FUA.
    fn attributes(&self) -> u32 {
        let read_only = if self.read_only {
            attribute::READ_ONLY
        } else {
            0
        };
        let rotational = if self.rotational {
            attribute::ROTATIONAL
        } else {
            0
        };
        attribute::VOLATILE_CACHE | attribute::FUA | read_only | rotational
    }
}

fn shift(bytes: u32) -> u8 {
    bytes.trailing_zeros() as u8
}

fn sectors(bytes: u64) -> u32 {
    u32::try_from(bytes / SECTOR_BYTES).unwrap_or(u32::MAX)
}

/// A command that one tag of the queue sends to the driver: `struct ublksrv_io_cmd` without the
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoCommand {
    /// Fetches the first request. This is the first command of each tag.
    Fetch,
    /// Commits this result of the current request, and fetches the next request.
    Commit(i32),
}

impl IoCommand {
    pub(super) fn op(self) -> u32 {
        let number = match self {
            IoCommand::Fetch => 0x20,
            IoCommand::Commit(_) => 0x21,
        };
        encoded(READ_WRITE, number, IO_COMMAND_BYTES)
    }

    /// Encodes the command for queue 0, the only queue, without its last eight bytes, which are the
    /// address of the buffer.
    pub(super) fn head(self, tag: u16) -> [u8; 8] {
        let result = match self {
            IoCommand::Fetch => -1,
            IoCommand::Commit(result) => result,
        };
        let mut out = [0; 8];
        out[2..4].copy_from_slice(&tag.to_ne_bytes());
        out[4..8].copy_from_slice(&result.to_ne_bytes());
        out
    }
}

/// Bits of `ublksrv_io_desc.op_flags` above the bits of the operation.
mod request_flag {
    pub(super) const FUA: u32 = 1 << 13;
    pub(super) const NO_UNMAP: u32 = 1 << 15;
}

/// A request from the driver: `struct ublksrv_io_desc` without the address. The address is omitted
/// because it is always the address of the tag's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// The operation; `None` if the device has not offered the operation to the driver.
    pub(super) op: Option<Op>,
    pub(super) fua: bool,
    /// Whether a write-zeroes request must keep the space allocated.
    pub(super) keep_allocated: bool,
    pub(super) start_sector: u64,
    pub(super) sectors: u32,
}

impl Descriptor {
    pub(super) fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Descriptor {
        let op_flags = u32::from_ne_bytes(part(bytes, 0));
        let op = match op_flags & 0xff {
            0 => Some(Op::Read),
            1 => Some(Op::Write),
            2 => Some(Op::Flush),
            3 => Some(Op::Discard),
            5 => Some(Op::WriteZeroes),
            _ => None,
        };
        Descriptor {
            op,
            fua: op_flags & request_flag::FUA != 0,
            keep_allocated: op_flags & request_flag::NO_UNMAP != 0,
            sectors: u32::from_ne_bytes(part(bytes, 4)),
            start_sector: u64::from_ne_bytes(part(bytes, 8)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Converts hexadecimal text to bytes. The expected layouts in these tests are written for
    /// little-endian machines.
    fn from_hex(text: &str) -> Vec<u8> {
        let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
        let bytes = digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8);
        bytes.collect()
    }

    #[test]
    fn command_numbers_are_those_of_the_header() {
        // The first number shows how all of them are formed: `_IOWR('u', 0x04, 32 bytes)` is 3 <<
        // 30 | 32 << 16 | 0x75 << 8 | 4.
        let numbers = [
            (Control::AddDevice, 0xc020_7504),
            (Control::DeleteDevice, 0xc020_7505),
            (Control::StartDevice, 0xc020_7506),
            (Control::StopDevice, 0xc020_7507),
            (Control::SetParameters, 0xc020_7508),
            (Control::DeviceInfo, 0x8020_7512),
            (Control::DeleteDeviceAsync, 0x8020_7514),
        ];
        for (control, number) in numbers {
            assert_eq!(control.op(), number, "{control:?}");
        }
        assert_eq!(IoCommand::Fetch.op(), 0xc010_7520);
        assert_eq!(IoCommand::Commit(0).op(), 0xc010_7521);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_control_command_lies_as_in_the_header() {
        let command = ControlCommand {
            number: 0x0403_0201,
            data_bytes: 0x4c,
            argument: 0x1122,
            path_bytes: 12,
        };
        let expected = "01020304 ffff 4c00  0000000000000000  2211000000000000  0c00 0000 00000000";
        assert_eq!(command.encode().to_vec(), from_hex(expected));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn device_information_lies_as_in_the_header() {
        let info = DeviceInfo {
            queues: 1,
            queue_depth: 64,
            buffer_bytes: 0x4_0000,
            number: u32::MAX,
            server: 0,
        };
        let head = "0100 4000 0000 0000  00000400 ffffffff  00000000 00000000";
        let expected = [from_hex(head), vec![0; 40]].concat();
        assert_eq!(info.encode().to_vec(), expected);

        // The driver's answer contains a state of 1, the process ID 300, and flags. The state and
        // the flags are ignored.
        let head = "0100 4000 0100 0000  00000400 05000000  2c010000 00000000  4200000000000000";
        let answer = [from_hex(head), vec![0; 32]].concat();
        let answered = DeviceInfo {
            number: 5,
            server: 300,
            ..info
        };
        assert_eq!(DeviceInfo::decode(&part(&answer, 0)), answered);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn parameters_lie_as_in_the_header() {
        let parameters = Parameters {
            size_bytes: 96 << 20,
            read_only: true,
            rotational: true,
            logical_block_bytes: 512,
            physical_block_bytes: 4096,
            preferred_bytes: 1 << 16,
            transfer_bytes_max: 256 << 10,
            range_bytes_max: 1 << 31,
        };
        // The fields in order: length and types; attributes, four shifts, then 512 and 0 sectors;
        // 196,608 sectors; no boundary; alignment 0, granularity 4096, twice 2^22 sectors, and one
        // segment.
        let expected = "3c000000 03000000  0f000000 09 0c 10 0c 00020000 00000000  0000030000000000
            0000000000000000  00000000 00100000 00004000 00004000 0100 0000";
        assert_eq!(parameters.encode().to_vec(), from_hex(expected));
        let writable = Parameters {
            read_only: false,
            rotational: false,
            ..parameters
        };
        assert_eq!(writable.encode()[8..12], [0x0c, 0, 0, 0]);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn commands_of_a_tag_lie_as_in_the_header() {
        let fetch = IoCommand::Fetch.head(3).to_vec();
        assert_eq!(fetch, from_hex("0000 0300 ffffffff"));
        let commit = IoCommand::Commit(-5).head(0x102).to_vec();
        assert_eq!(commit, from_hex("0000 0201 fbffffff"));
        let commit = IoCommand::Commit(4096).head(0).to_vec();
        assert_eq!(commit, from_hex("0000 0000 00100000"));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn descriptors_are_read_as_in_the_header() {
        let read = |text: &str| Descriptor::decode(&part(&from_hex(text), 0));
        let write = read("01200000 08000000 1000000000000000 00a0000000000000");
        let expected = Descriptor {
            op: Some(Op::Write),
            fua: true,
            keep_allocated: false,
            start_sector: 16,
            sectors: 8,
        };
        assert_eq!(write, expected);
        let zeroes = read("05800000 ffffffff ffffffffffffffff 0000000000000000");
        let expected = Descriptor {
            op: Some(Op::WriteZeroes),
            fua: false,
            keep_allocated: true,
            start_sector: u64::MAX,
            sectors: u32::MAX,
        };
        assert_eq!(zeroes, expected);
        let rest = "000000 00000000 0000000000000000 0000000000000000";
        let op = |number| read(&format!("{number}{rest}")).op;
        assert_eq!(op("00"), Some(Op::Read));
        assert_eq!(op("02"), Some(Op::Flush));
        assert_eq!(op("03"), Some(Op::Discard));
        // `WRITE_SAME`, and an operation of zoned devices.
        assert_eq!(op("04"), None);
        assert_eq!(op("0a"), None);
    }
}
