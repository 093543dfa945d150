//! Signatures that formats leave on a device. They are checked so that existing data is recognised
//! before it is overwritten.
//!
//! The position and value of each signature come from the documentation or header of the format,
//! which is named next to the signature in the table. A format that is not in the table is not
//! recognised, so a device without a signature is not necessarily empty.

use std::ops::Range;

use crate::request::BLOCK_BYTES;

/// Number of bytes read from the start of a device. The last signature in this part is the
/// signature of VMFS at 1 MiB.
const HEAD_BYTES: u64 = (1 << 20) + BLOCK_BYTES;
/// Number of bytes read from the end of a device: two ZFS labels of 256 KiB, and after them up to
/// 256 KiB that are too short for another label.
const TAIL_BYTES: u64 = 768 << 10;
/// Sector sizes for which partition tables are recognised.
const SECTORS: [u64; 2] = [512, 4096];

/// A signature of a format that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Common name of the format.
    pub format: &'static str,
    /// Range of the bytes that identify the format.
    pub range: Range<u64>,
}

/// The content of the start and the end of a device.
#[derive(Clone, Debug)]
pub struct Ends {
    size_bytes: u64,
    parts: Vec<(u64, Vec<u8>)>,
}

impl Ends {
    /// Returns the ranges to read from a device of this size.
    pub fn ranges(size_bytes: u64) -> Vec<Range<u64>> {
        let head = HEAD_BYTES.min(size_bytes);
        let tail = size_bytes.saturating_sub(TAIL_BYTES).max(head);
        let tail = tail - (tail % BLOCK_BYTES).min(tail - head);
        let ranges = [0..head, tail..size_bytes];
        ranges
            .into_iter()
            .filter(|range| !range.is_empty())
            .collect()
    }

    /// Creates the value from the contents of [`Ends::ranges`], in the same order, with `None` for
    /// a range that could not be read.
    ///
    /// # Panics
    /// When the content of a range is shorter or longer than the range.
    pub fn new(size_bytes: u64, read: Vec<Option<Vec<u8>>>) -> Ends {
        let parts = Ends::ranges(size_bytes).into_iter().zip(read);
        let parts = parts.filter_map(|(range, bytes)| {
            let bytes = bytes?;
            assert_eq!(bytes.len() as u64, range.end - range.start, "read whole");
            Some((range.start, bytes))
        });
        Ends {
            size_bytes,
            parts: parts.collect(),
        }
    }

    fn at(&self, offset: u64, len: usize) -> Option<&[u8]> {
        self.parts.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
            bytes.get(from..from.checked_add(len)?)
        })
    }

    fn has(&self, offset: u64, magic: &[u8]) -> bool {
        self.at(offset, magic.len()) == Some(magic)
    }

    /// Returns the signatures found on the device.
    pub fn signatures(&self) -> Vec<Signature> {
        let mut found = Vec::new();
        for (format, offset, magic) in FIXED {
            if self.has(*offset, magic) {
                push(&mut found, format, *offset, magic.len());
            }
        }
        self.add_ext(&mut found);
        self.add_lvm(&mut found);
        self.add_partitions(&mut found);
        self.add_md(&mut found);
        self.add_zfs(&mut found);
        self.add_firmware_raid(&mut found);
        found
    }

    /// Adds the signature of ext2, ext3 or ext4. All three share a magic number of only two bytes,
    /// so the block size in front of the magic number is checked too
    /// (Documentation/filesystems/ext4/super.rst of Linux: in a superblock at 1024, `s_magic` at
    /// 0x38 and `s_log_block_size` at 0x18; bit 2 of `s_feature_compat` at 0x5c means a journal,
    /// and bit 6 of `s_feature_incompat` at 0x60 means extents).
    fn add_ext(&self, found: &mut Vec<Signature>) {
        const AT: u64 = 1024;
        let Some(block) = self.at(AT, 0x64) else {
            return;
        };
        let word = |at: usize| {
            u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
        };
        // The block size is 1 KiB shifted left by `word(0x18)`. It is at most 64 KiB.
        if block[0x38..0x3a] != [0x53, 0xef] || word(0x18) > 6 {
            return;
        }
        let format = match (word(0x60) & 0x40 != 0, word(0x5c) & 0x4 != 0) {
            (true, _) => "ext4",
            (false, true) => "ext3",
            (false, false) => "ext2",
        };
        push(found, format, AT + 0x38, 2);
    }

    /// Adds the label of an LVM physical volume, which is in one of the first four sectors (LVM2,
    /// lib/label/label.h: `LABEL_ID`, `LABEL_SCAN_SECTORS`).
    fn add_lvm(&self, found: &mut Vec<Signature>) {
        let places = (0..4).map(|sector| sector * 512);
        for at in places.filter(|at| self.has(*at, b"LABELONE")) {
            push(found, "LVM", at, 8);
        }
    }

    /// Adds partition tables. The GPT header is in the second sector and in the last sector (UEFI
    /// 2.10, 5.3.2). An MBR has 0x55 0xAA at 510 and four entries of 16 bytes from 446 on; byte 4
    /// of an entry is the type, and byte 0 is 0 or 0x80 (5.2.1). A boot sector of FAT or NTFS ends
    /// with the same two bytes, but also names its format (Microsoft, FAT32 File System
    /// Specification 1.03: `BS_FilSysType` at 54 or 82; NTFS and exFAT at 3).
    fn add_partitions(&self, found: &mut Vec<Signature>) {
        for sector in SECTORS {
            let last = self.size_bytes.checked_sub(sector);
            for at in [Some(sector), last].into_iter().flatten() {
                let known = found.iter().any(|one| one.range.start == at);
                if !known && self.has(at, b"EFI PART") {
                    push(found, "GPT", at, 8);
                }
            }
        }
        let Some(sector) = self
            .at(0, 512)
            .filter(|sector| sector.ends_with(&[0x55, 0xaa]))
        else {
            return;
        };
        for (format, at, magic) in [
            ("FAT", 54, &b"FAT12   "[..]),
            ("FAT", 54, b"FAT16   "),
            ("FAT", 82, b"FAT32   "),
            ("NTFS", 3, b"NTFS    "),
            ("exFAT", 3, b"EXFAT   "),
            ("BitLocker", 3, b"-FVE-FS-"),
        ] {
            if sector[at..].starts_with(magic) {
                push(found, format, at as u64, magic.len());
                return;
            }
        }
        let entries = sector[446..510].chunks(16);
        let mut used = entries.clone().filter(|entry| entry[4] != 0).peekable();
        let is_table =
            used.peek().is_some() && entries.into_iter().all(|entry| entry[0] & 0x7f == 0);
        if is_table {
            push(found, "MBR", 510, 2);
        }
    }

    /// Adds the superblock of md. Version 1 is at the start, at 4 KiB, or at a multiple of 4 KiB
    /// that is 8 KiB to 12 KiB before the end. Version 0.90 is in the last whole 64 KiB, in either
    /// byte order (Linux, include/uapi/linux/raid/md_p.h: `MD_SB_MAGIC`, `MD_NEW_SIZE_SECTORS`;
    /// drivers/md/md.c, `super_1_load`).
    fn add_md(&self, found: &mut Vec<Signature>) {
        const MAGIC: u32 = 0xa92b_4efc;
        let end = (self.size_bytes / 512)
            .checked_sub(16)
            .map(|at| (at & !7) * 512);
        let old = (self.size_bytes & !0xffff).checked_sub(0x1_0000);
        for at in [Some(0), Some(4096), end, old].into_iter().flatten() {
            let known = found.iter().any(|one| one.range.start == at);
            let either = [MAGIC.to_le_bytes(), MAGIC.to_be_bytes()];
            if !known && either.iter().any(|magic| self.has(at, magic)) {
                push(found, "md (RAID)", at, 4);
            }
        }
    }

    /// Adds ZFS labels: four labels of 256 KiB, two at the start and two at the end, with
    /// uberblocks of 1 KiB or more in the second half of each (OpenZFS, include/sys/vdev_impl.h:
    /// `vdev_label_t`; include/sys/uberblock_impl.h: `UBERBLOCK_MAGIC`).
    fn add_zfs(&self, found: &mut Vec<Signature>) {
        const LABEL: u64 = 256 << 10;
        const MAGIC: u64 = 0x00ba_b10c;
        let end = self.size_bytes & !(LABEL - 1);
        let at_end = [2, 1].map(|labels| end.checked_sub(labels * LABEL));
        let labels = [Some(0), Some(LABEL)].into_iter().chain(at_end);
        let mut known = Vec::new();
        for label in labels.flatten() {
            if known.contains(&label) {
                continue;
            }
            known.push(label);
            let slots = (LABEL / 2..LABEL).step_by(1024).map(|at| label + at);
            let either = [MAGIC.to_le_bytes(), MAGIC.to_be_bytes()];
            for at in slots.filter(|at| either.iter().any(|magic| self.has(*at, magic))) {
                push(found, "ZFS", at, 8);
            }
        }
    }

    /// Adds firmware RAID: DDF in the last sector (SNIA, Common RAID Disk Data Format 2.0:
    /// `DDF_Header`), and the format of Intel in the last but one sector (mdadm, super-intel.c:
    /// `MPB_SIGNATURE`).
    fn add_firmware_raid(&self, found: &mut Vec<Signature>) {
        for (sectors, magic) in [
            (1, &b"\xde\x11\xde\x11"[..]),
            (2, b"Intel Raid ISM Cfg Sig. "),
        ] {
            let at = self.size_bytes.checked_sub(sectors * 512);
            if let Some(at) = at.filter(|at| self.has(*at, magic)) {
                push(found, "firmware RAID", at, magic.len());
            }
        }
    }
}

fn push(found: &mut Vec<Signature>, format: &'static str, at: u64, len: usize) {
    found.push(Signature {
        format,
        range: at..at + len as u64,
    });
}

/// Returns the names of the formats, each once, as a list for a message, or `None` if there are no
/// signatures.
pub fn in_words(found: &[Signature]) -> Option<String> {
    let mut formats: Vec<&str> = Vec::new();
    for one in found {
        if !formats.contains(&one.format) {
            formats.push(one.format);
        }
    }
    (!formats.is_empty()).then(|| formats.join(", "))
}

/// Signatures at a fixed offset: format, offset, bytes.
const FIXED: &[(&str, u64, &[u8])] = &[
    // Linux, fs/xfs/libxfs/xfs_format.h: XFS_SB_MAGIC.
    ("XFS", 0, b"XFSB"),
    // Linux, include/uapi/linux/btrfs_tree.h: BTRFS_MAGIC at 64 of the superblock at 64 KiB.
    ("btrfs", 65536 + 64, b"_BHRfS_M"),
    // Linux, include/linux/swap.h: the signature is at the end of `union swap_header`, which is as
    // long as a page (4, 16 or 64 KiB).
    ("swap", 4096 - 10, b"SWAPSPACE2"),
    ("swap", 4096 - 10, b"SWAP-SPACE"),
    ("swap", 16384 - 10, b"SWAPSPACE2"),
    ("swap", 65536 - 10, b"SWAPSPACE2"),
    // Linux, kernel/power/swap.c: HIBERNATE_SIG replaces the swap signature.
    ("hibernation image", 4096 - 10, b"S1SUSPEND"),
    // LUKS On-Disk Format Specification 1.2.3 and LUKS2 1.1.3: first and second header.
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("LUKS", 0x4000, b"SKUL\xba\xbe"),
    // Linux, include/linux/f2fs_fs.h: F2FS_SUPER_MAGIC 0xF2F52010 at F2FS_SUPER_OFFSET.
    ("F2FS", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    // Linux, drivers/md/bcache/bcache_ondisk.h (SB_SECTOR 8, magic at 24), and bcachefs, which
    // first used the same magic and now has BCHFS_MAGIC (fs/bcachefs/bcachefs_format.h).
    (
        "bcache",
        4096 + 24,
        &[
            0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba,
            0x6d, 0x81,
        ],
    ),
    (
        "bcachefs",
        4096 + 24,
        &[
            0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d,
            0xf7, 0xef,
        ],
    ),
    // Linux, fs/reiserfs/reiserfs.h: s_magic at 52 of the superblock at 64 KiB.
    ("ReiserFS", 65536 + 52, b"ReIsEr"),
    // Linux, fs/jfs/jfs_superblock.h: JFS_MAGIC at 32 KiB.
    ("JFS", 32768, b"JFS1"),
    // ECMA-119, 8.1: the standard identifier in the descriptor of sector 16. A sector has 2 KiB.
    ("ISO 9660", 32768 + 1, b"CD001"),
    // Linux, include/uapi/linux/magic.h: SQUASHFS_MAGIC, EROFS_SUPER_MAGIC_V1 (at 1024).
    ("SquashFS", 0, b"hsqs"),
    ("EROFS", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    // Apple File System Reference: nx_magic at 32. Technical Note TN1150: HFS+ and HFSX at 1024,
    // version 4 or 5.
    ("APFS", 32, b"NXSB"),
    ("HFS+", 1024, b"H+\x00\x04"),
    ("HFS+", 1024, b"HX\x00\x05"),
    // Ceph, src/os/bluestore/BlueStore.cc: BDEV_LABEL_BLOCK.
    ("Ceph BlueStore", 0, b"bluestore block device\n"),
    // util-linux, libblkid/src/superblocks/vmfs.c: 0xc001d00d at 1 MiB.
    ("VMFS", 1 << 20, &[0x0d, 0xd0, 0x01, 0xc0]),
    // QEMU, docs/interop/qcow2.txt; VMware Virtual Disk Format 5.0; Microsoft MS-VHDX 2.2.1.
    ("qcow2", 0, b"QFI\xfb"),
    ("VMDK", 0, b"KDMV"),
    ("VHDX", 0, b"vhdxfile"),
];

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Returns the formats found on a device of this size with the given bytes at the given
    /// offsets.
    fn formats(size_bytes: usize, content: &[(usize, &[u8])]) -> Vec<&'static str> {
        let mut device = vec![0; size_bytes];
        for (at, bytes) in content {
            device[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        let ranges = Ends::ranges(size_bytes as u64).into_iter();
        let read =
            ranges.map(|range| Some(device[range.start as usize..range.end as usize].to_vec()));
        let ends = Ends::new(size_bytes as u64, read.collect());
        ends.signatures().iter().map(|one| one.format).collect()
    }

    #[test]
    fn both_ends_are_looked_at_once() {
        let mib = MIB as u64;
        assert_eq!(Ends::ranges(8192), vec![0..8192; 1]);
        let head = mib + 4096;
        assert_eq!(
            Ends::ranges(2 * mib),
            [0..head, 2 * mib - (768 << 10)..2 * mib]
        );
        assert_eq!(Ends::ranges(head + 512), [0..head, head..head + 512]);
        let odd = 64 * mib + 512;
        let tail = 64 * mib - (768 << 10);
        assert_eq!(Ends::ranges(odd), [0..head, tail..odd]);
    }

    /// Signatures that are written by the formats' own tools are tested in
    /// `cli/tests/neighbours.rs`; this test covers the other signatures.
    #[test]
    fn marks_at_the_end_are_found_on_any_size() {
        for size in [
            64 * MIB,
            64 * MIB + 512,
            65 * MIB - 4096,
            3 * MIB + 513 * 512,
        ] {
            // Computed by hand from the rule of md: 8 KiB before the end, rounded down to 4 KiB.
            let md_1_0 = (size - 8192) / 4096 * 4096;
            let md_0_90 = size / 65536 * 65536 - 65536;
            let zfs = size / (256 << 10) * (256 << 10) - (128 << 10) + 3 * 1024;
            let md = 0xa92b_4efc_u32;
            for (content, expected) in [
                ((size - 512, &b"EFI PART"[..]), "GPT"),
                ((md_1_0, &md.to_le_bytes()), "md (RAID)"),
                ((md_0_90, &md.to_be_bytes()), "md (RAID)"),
                ((zfs, &0x00ba_b10c_u64.to_le_bytes()), "ZFS"),
                ((zfs - (256 << 10), &0x00ba_b10c_u64.to_be_bytes()), "ZFS"),
                ((size - 512, b"\xde\x11\xde\x11"), "firmware RAID"),
                ((size - 1024, b"Intel Raid ISM Cfg Sig. "), "firmware RAID"),
            ] {
                assert_eq!(formats(size, &[content]), [expected], "{size} {content:?}");
            }
            assert!(formats(size, &[]).is_empty());
        }
    }

    #[test]
    fn a_boot_sector_is_no_table_of_partitions() {
        let end = (510, &[0x55, 0xaa][..]);
        let entry = (446 + 4, &[0x83][..]);
        assert_eq!(formats(MIB, &[end, entry]), ["MBR"]);
        assert_eq!(formats(MIB, &[end, (54, b"FAT16   ")]), ["FAT"]);
        // The first device has only the two magic bytes; the second also has an entry whose active
        // flag is neither 0 nor 0x80.
        assert!(formats(MIB, &[end]).is_empty());
        assert!(formats(MIB, &[end, entry, (446, &[0x12])]).is_empty());
        assert!(formats(MIB, &[entry]).is_empty());
    }

    #[test]
    fn small_and_unreadable_devices_are_no_fault() {
        for size in [0, 1, 512, 4096, 65536] {
            assert!(formats(size, &[]).is_empty());
        }
        let unread = Ends::new(8 << 20, vec![None, None]);
        assert!(unread.signatures().is_empty());
        // The two magic bytes alone are not recognised as ext: the block size must be valid too.
        let word = |at: usize, bytes: &'static [u8]| (1024 + at, bytes);
        let magic = word(0x38, &[0x53_u8, 0xef][..]);
        assert_eq!(formats(MIB, &[magic]), ["ext2"]);
        assert!(formats(MIB, &[magic, word(0x18, &[7])]).is_empty());
    }
}
