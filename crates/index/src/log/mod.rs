//! The log: all changes in order. A change is acknowledged only after it was appended to the log.
//! If the caller of the write requests durability, the change is also made durable in the log
//! before that.
//!
//! The log is a ring of blocks that is overwritten again and again, so that a commit costs the file
//! system no work besides writing its blocks. When the ring is too short, the log continues in a
//! longer ring ([`rings`](crate::rings)). Batches that are written together form a frame of whole
//! blocks. The header of a frame has a checksum, the position of the frame, and the position up to
//! which the log was durable when the frame was written. Reading stops at the first frame that is
//! not intact, and reports damage if a later frame proves that the missing frame was durable.
//! Reading must never accept a leftover frame, which is a frame of an earlier lap, of an earlier
//! incarnation of the log, or of another index.

mod frame;
mod reader;
mod writer;

pub(crate) use frame::{Frame, HEADER_BYTES, Header};
pub(crate) use reader::Reader;
pub(crate) use writer::Log;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{END, Operation, push_operation};
    use crate::error::Error;
    use crate::layout::{Geometry, LOG_OFFSET, Superblock};
    use crate::rings::{Ring, RingLocation, Rings};
    use crate::storage::memory::MemoryStorage;
    use crate::storage::{BLOCK_BYTES, Storage};

    const GEOMETRY: Geometry = Geometry {
        id: 42,
        log_blocks: 64,
        segment_bytes: 64 << 10,
        front_blocks: 64,
    };

    fn storage() -> MemoryStorage {
        let len_bytes = GEOMETRY.segments_offset() as usize;
        MemoryStorage::with_content(vec![0; len_bytes])
    }

    fn rings() -> Rings {
        Rings::of_one(Ring::front(&GEOMETRY, 0))
    }

    fn superblock(log_tail: u64, generation: u64) -> Superblock {
        Superblock {
            geometry: GEOMETRY,
            generation,
            opening: 1,
            log_tail,
            seq_at_tail: 0,
            opening_at_tail: 0,
            log_durable: 0,
            rings: rings(),
            checkpoint: Vec::new(),
            checkpoint_bytes: 0,
            checkpoint_crc: 0,
        }
    }

    fn batch(number: u64, bytes: usize) -> Vec<u8> {
        let mut operations = Vec::new();
        let value = vec![number as u8; bytes];
        push_operation(
            &mut operations,
            Operation::Put {
                key: &number.to_be_bytes(),
                value: &value,
            },
        );
        operations
    }

    fn read_all(storage: &MemoryStorage, tail: u64) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        let mut reader = Reader::new(storage, &superblock(tail, 9));
        let mut all = Vec::new();
        while let Some(frame) = reader.next()? {
            all.push((frame.first_seq, frame.operations.to_vec()));
        }
        Ok(all)
    }

    #[test]
    fn what_was_written_is_read_round_the_ring() {
        let storage = storage();
        let mut log = Log::new(GEOMETRY, 1, rings(), 0, 0);
        let mut expected = Vec::new();
        for number in 1..=100 {
            let operations = batch(number, 6000);
            log.append(number, &operations, &[]);
            log.write_out(&storage, true).unwrap();
            expected.push((number, operations));
            // Each batch takes two blocks, and the last ten batches are needed.
            log.release(log.head().saturating_sub(20), rings(), 9);
        }
        let read = read_all(&storage, log.tail()).unwrap();
        assert_eq!(read, expected[90..]);
        assert_eq!(log.head(), 200);
    }

    #[test]
    fn operations_have_the_number_of_their_batch_and_a_batch_without_an_end_is_none() {
        let storage = storage();
        let mut log = Log::new(GEOMETRY, 1, rings(), 0, 0);
        log.append(7, &batch(1, 1), &[END]);
        log.append(8, &[], &[END]);
        log.append(9, &[batch(2, 1), batch(3, 1)].concat(), &[END]);
        log.write_out(&storage, false).unwrap();
        log.relog(9, &batch(4, 1));
        log.write_out(&storage, false).unwrap();
        log.append(10, &batch(5, 1), &[END]);
        log.append(11, &batch(6, 1), &[]);
        log.write_out(&storage, false).unwrap();
        let mut reader = Reader::new(&storage, &superblock(0, 9));
        let mut next = || {
            let mut seqs = Vec::new();
            let frame = reader.next().unwrap().expect("three frames");
            let last = frame.each(|seq, operation| {
                assert!(matches!(operation, Operation::Put { .. }));
                seqs.push(seq);
                Ok(())
            });
            (seqs, last)
        };
        assert_eq!(next(), (vec![7, 9, 9], Ok(9)));
        assert_eq!(next(), (vec![9], Ok(9)));
        let (seqs, last) = next();
        // No operation of the batch without an end is returned.
        assert_eq!(seqs, [10]);
        let damaged = Error::Damaged {
            what: "a batch in the log".to_owned(),
            offset: LOG_OFFSET + 2 * BLOCK_BYTES as u64,
        };
        assert_eq!(last, Err(damaged));
    }

    #[test]
    fn an_older_lap_and_an_older_opening_are_not_read() {
        let storage = storage();
        let mut log = Log::new(GEOMETRY, 1, rings(), 0, 0);
        for number in 1..=8 {
            log.append(number, &batch(number, 10), &[]);
            log.write_out(&storage, false).unwrap();
        }
        // A power cut left block 3 unwritten, so the frames after it are not part of the log.
        let mut content = storage.content();
        let at = LOG_OFFSET as usize + 3 * BLOCK_BYTES;
        content[at..at + BLOCK_BYTES].fill(0);
        let storage = MemoryStorage::with_content(content);
        assert_eq!(read_all(&storage, 0).unwrap().len(), 3);
        let mut log = Log::new(GEOMETRY, 2, rings(), 0, 3);
        log.append(4, &batch(4, 20), &[]);
        log.write_out(&storage, true).unwrap();
        let read = read_all(&storage, 0).unwrap();
        assert_eq!(read.len(), 4, "the old frames at 4.. are of opening 1");
        assert_eq!(read[3], (4, batch(4, 20)));
    }

    #[test]
    fn a_frame_that_was_durable_and_is_missing_is_damage() {
        let storage = storage();
        let mut log = Log::new(GEOMETRY, 1, rings(), 0, 0);
        for number in 1..=5 {
            log.append(number, &batch(number, 10), &[]);
            log.write_out(&storage, true).unwrap();
        }
        for lost in 0..4 {
            let mut content = storage.content();
            content[LOG_OFFSET as usize + lost * BLOCK_BYTES + 100] ^= 1;
            let damaged = MemoryStorage::with_content(content);
            assert!(
                matches!(read_all(&damaged, 0), Err(Error::Damaged { .. })),
                "frame {lost}"
            );
        }
        // Whether the last frame was durable is unknown: its write may have been torn.
        let mut content = storage.content();
        content[LOG_OFFSET as usize + 4 * BLOCK_BYTES + 100] ^= 1;
        let torn = MemoryStorage::with_content(content);
        assert_eq!(read_all(&torn, 0).unwrap().len(), 4);
    }

    #[test]
    fn a_superblock_that_was_not_the_newest_is_found_out() {
        let storage = storage();
        let mut log = Log::new(GEOMETRY, 1, rings(), 0, 0);
        for number in 1..=100 {
            log.append(number, &batch(number, 10), &[]);
            log.write_out(&storage, true).unwrap();
            log.release(log.head(), rings(), 2 + number);
        }
        // The superblock of generation 9 says that the log is needed from block 7 on, but the ring
        // has been overwritten since.
        assert!(matches!(read_all(&storage, 7), Err(Error::Damaged { .. })));
        let mut newest = Reader::new(&storage, &superblock(100, 102));
        assert!(
            newest.next().unwrap().is_none(),
            "nothing is newer than that"
        );
    }

    #[test]
    fn a_log_that_ends_before_what_the_superblock_knows_to_be_durable_is_found_out() {
        let storage = storage();
        let mut log = Log::new(GEOMETRY, 1, rings(), 0, 0);
        for number in 1..=3 {
            log.append(number, &batch(number, 100), &[]);
            log.write_out(&storage, false).unwrap();
        }
        storage.sync().unwrap();
        // No frame says that an earlier frame is durable.
        storage.rot(LOG_OFFSET + BLOCK_BYTES as u64 + 70, 1);
        assert_eq!(read_all(&storage, 0).unwrap().len(), 1);
        for (durable, is_lost) in [(1, false), (2, true), (3, true)] {
            let known = Superblock {
                log_durable: durable,
                ..superblock(0, 9)
            };
            let mut reader = Reader::new(&storage, &known);
            assert!(reader.next().unwrap().is_some());
            assert_eq!(reader.next().is_err(), is_lost, "{durable}");
        }
    }

    #[test]
    fn one_durable_write_a_commit_and_a_sync_where_something_waited() {
        let storage = storage();
        let mut log = Log::new(GEOMETRY, 1, rings(), 0, 0);
        log.append(1, &batch(1, 10), &[]);
        log.write_out(&storage, true).unwrap();
        assert_eq!((storage.counts().writes, storage.counts().flushes), (1, 1));
        assert_eq!(storage.counts().written_bytes, BLOCK_BYTES as u64);
        log.append(2, &batch(2, 10), &[]);
        log.write_out(&storage, false).unwrap();
        assert_eq!(log.durable_below(), 1);
        log.append(3, &batch(3, 10), &[]);
        log.write_out(&storage, true).unwrap();
        assert_eq!((storage.counts().writes, storage.counts().flushes), (3, 2));
        assert_eq!(log.durable_below(), 3);
        // All three frames survive every outcome of a power cut.
        let after = storage.after_power_cut(&mut || 0);
        assert_eq!(read_all(&after, 0).unwrap().len(), 3);
    }

    /// The log moves from the ring at the front to a ring in segments 2 to 9 and back. For some
    /// time after each move, the tail is still in the previous ring. The log must be readable
    /// across both rings.
    #[test]
    fn what_was_written_is_read_from_one_ring_to_the_next() {
        let geometry = Geometry {
            log_blocks: 128,
            ..GEOMETRY
        };
        let len_bytes = geometry.segment_offset(20) as usize;
        let storage = MemoryStorage::with_content(vec![0; len_bytes]);
        let longer = |from| Ring {
            from,
            place: RingLocation::Segments(2),
            blocks: 128,
        };
        let mut log = Log::new(geometry, 1, rings(), 0, 0);
        let mut number = 0;
        let mut write = |log: &mut Log, count| {
            for _ in 0..count {
                number += 1;
                log.append(number, &batch(number, 6000), &[END]);
                log.write_out(&storage, true).unwrap();
            }
        };
        // Each batch takes two blocks: 30 batches take 60 of the front's 64 blocks, and the next 80
        // batches go around the longer ring more than once.
        write(&mut log, 30);
        assert_eq!((log.used_blocks(), log.free_blocks()), (60, 4));
        let in_both = log.rings().with(longer(log.head()));
        log.go_on_in(in_both.clone(), 5);
        assert_eq!((log.used_blocks(), log.free_blocks()), (0, 128));
        write(&mut log, 50);
        let read = |tail, rings: &Rings, durable| {
            let superblock = Superblock {
                geometry,
                rings: rings.needed_from(tail),
                log_durable: durable,
                ..superblock(tail, 9)
            };
            let mut reader = Reader::new(&storage, &superblock);
            let mut seqs = Vec::new();
            while let Some(frame) = reader.next()? {
                seqs.push(frame.first_seq);
            }
            Ok::<_, Error>(seqs)
        };
        assert_eq!(read(40, &in_both, 60), Ok((21..=80).collect()));
        log.release(100, in_both.needed_from(100), 6);
        write(&mut log, 30);
        assert_eq!(read(100, &in_both, 100), Ok((51..=110).collect()));
        let front = Rings::of_one(Ring::front(&geometry, log.head()));
        log.release(log.head(), front.clone(), 8);
        write(&mut log, 10);
        assert_eq!(read(220, &front, 220), Ok((111..=120).collect()));
        // The loss of the last frame before the log moves to another ring is noticed, although no
        // later frame is in the same ring.
        storage.rot(Ring::front(&geometry, 0).offset_of(&geometry, 238), 1);
        assert_eq!(read(220, &front, 230), Ok((111..=119).collect()));
        assert!(read(220, &front, 240).is_err());
    }

    /// Before a durable write, blocks that were never written are filled with zeroes, many at a
    /// time. Otherwise the file system would have to mark a block as used in each such write. With
    /// the filling, most commits are one write.
    #[test]
    fn blocks_that_were_never_written_are_filled_before_a_durable_write() {
        let geometry = Geometry {
            log_blocks: 1024,
            ..GEOMETRY
        };
        let len_bytes = geometry.segment_offset(80) as usize;
        let storage = MemoryStorage::with_content(vec![7; len_bytes]);
        let ring = Ring {
            from: 10,
            place: RingLocation::Segments(1),
            blocks: 1024,
        };
        let mut log = Log::new(geometry, 1, Rings::of_one(ring), 10, 10);
        let before = storage.counts();
        for number in 1..=512 {
            log.append(number, &batch(number, 10), &[END]);
            log.write_out(&storage, true).unwrap();
        }
        let written = storage.counts().written_bytes - before.written_bytes;
        let flushes = storage.counts().flushes - before.flushes;
        assert_eq!((written, flushes), (2 * 512 * BLOCK_BYTES as u64, 512));
        assert_eq!(storage.counts().writes - before.writes, 512 + 2);
        // A long frame is written without filling blocks first.
        let before = storage.counts().writes;
        log.append(513, &batch(513, 400_000), &[END]);
        log.write_out(&storage, true).unwrap();
        assert_eq!(storage.counts().writes - before, 1);
    }
}
