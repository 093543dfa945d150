//! Random commands on small drives of unusual shapes, checked against an independent model of
//! flash.
//!
//! The drive records its operations, and this file executes them on an array of its own, which
//! knows only the rules of NAND and the content of every page. The test therefore does not rely on
//! the drive's own state: a mapped page must hold the version of the page that was written last, an
//! erased page must never be mapped, and the pages of a block must be programmed in order.

use bimetal_flash::{
    Action, BufferConfig, Capacity, Cleaning, Drive, DriveConfig, FlashError, FtlConfig, Geometry,
    NONE, Operation, PageConfig, Purpose, Streams, WearLevelling,
};
use proptest::prelude::*;

/// Content of a physical page: a logical page and its version; `None` for a page without content.
type Content = Option<(u32, u64)>;

/// The flash array of the test.
struct Array {
    stride: u32,
    pages_per_block: u32,
    pages: Vec<Content>,
    programmed: Vec<u32>,
    buffer: Vec<Content>,
    /// Newest version of each logical page that the host has written.
    newest: Vec<u64>,
    /// Content that the last read operation has returned.
    moving: Content,
    programs: u64,
    erases: u64,
}

impl Array {
    fn new(config: &DriveConfig, logical_pages: u32) -> Self {
        let geometry = &config.geometry;
        let stride = geometry.pages_per_block.next_power_of_two();
        let blocks = geometry.total_blocks();
        let slots = match config.buffer {
            BufferConfig::Slc(slots) => slots,
            _ => 0,
        };
        Array {
            stride,
            pages_per_block: geometry.pages_per_block,
            pages: vec![None; (blocks * stride) as usize],
            programmed: vec![0; blocks as usize],
            buffer: vec![None; slots as usize],
            newest: vec![0; logical_pages as usize],
            moving: None,
            programs: 0,
            erases: 0,
        }
    }

    fn carry_out(&mut self, operations: &[Operation]) {
        for operation in operations {
            match (operation.action, operation.purpose) {
                (Action::Erase, Purpose::Buffer) => {}
                (Action::Read, Purpose::Buffer) => {
                    self.moving = self.buffer[operation.page as usize];
                }
                (Action::Program, Purpose::Buffer) => {
                    let lpn = operation.lpn;
                    self.buffer[operation.page as usize] = Some((lpn, self.version(lpn)));
                }
                (Action::Read, _) => self.moving = self.pages[operation.page as usize],
                (Action::Program, purpose) => self.program(operation, purpose),
                (Action::Erase, _) => self.erase(operation.page),
            }
        }
    }

    /// Returns the newest version of a logical page, or 0 for a table page.
    fn version(&self, lpn: u32) -> u64 {
        self.newest.get(lpn as usize).copied().unwrap_or(0)
    }

    fn program(&mut self, operation: &Operation, purpose: Purpose) {
        let (block, offset) = (operation.page / self.stride, operation.page % self.stride);
        assert!(offset < self.pages_per_block, "a page that does not exist");
        assert_eq!(self.programmed[block as usize], offset, "out of order");
        self.programmed[block as usize] += 1;
        self.programs += 1;
        self.pages[operation.page as usize] = match purpose {
            Purpose::Copy => {
                let moving = self.moving.expect("a copy is read before it is programmed");
                assert_eq!(moving.0, operation.lpn, "the wrong page was copied");
                Some(moving)
            }
            Purpose::Padding => None,
            _ => Some((operation.lpn, self.version(operation.lpn))),
        };
    }

    fn erase(&mut self, first: u32) {
        assert_eq!(first % self.stride, 0);
        self.erases += 1;
        self.programmed[(first / self.stride) as usize] = 0;
        self.pages[first as usize..(first + self.stride) as usize].fill(None);
    }

    /// Returns the version of a logical page that a read of the drive would return.
    fn found(&self, drive: &Drive, lpn: u32) -> Option<u64> {
        if let Some(slot) = drive.buffered(lpn) {
            let content = self.buffer.get(slot as usize).copied().flatten();
            return Some(content.map_or(self.newest[lpn as usize], |content| content.1));
        }
        let page = drive.locate(lpn)?;
        let content = self.pages[page as usize].expect("a mapped page is programmed");
        assert_eq!(content.0, lpn, "a mapped page holds another");
        Some(content.1)
    }
}

/// A command of the host, idle time, or a power cut.
#[derive(Debug, Clone)]
enum Step {
    Write(Vec<u32>, u8),
    Stream(u32, u32),
    Read(u32),
    Trim(u32),
    Flush,
    Idle(u64),
    Cut,
}

fn step() -> impl Strategy<Value = Step> {
    let page = any::<u32>();
    prop_oneof![
        8 => (prop::collection::vec(page, 1..6), 0u8..3).prop_map(|(pages, c)| Step::Write(pages, c)),
        2 => (page, 1u32..40).prop_map(|(first, count)| Step::Stream(first, count)),
        4 => page.prop_map(Step::Read),
        2 => page.prop_map(Step::Trim),
        1 => Just(Step::Flush),
        1 => (0u64..20_000).prop_map(Step::Idle),
        1 => Just(Step::Cut),
    ]
}

fn page_config() -> impl Strategy<Value = PageConfig> {
    let cleaning = prop_oneof![
        Just(Cleaning::Greedy),
        Just(Cleaning::Fifo),
        Just(Cleaning::CostBenefit),
        (1u32..5).prop_map(Cleaning::Choices),
    ];
    let streams = prop_oneof![
        Just(Streams::One),
        (1u8..4).prop_map(Streams::Given),
        Just(Streams::Measured),
    ];
    let table = prop_oneof![
        3 => Just((0, false)),
        2 => (1u32..9).prop_map(|entries| (entries, false)),
        2 => Just((0, true)),
    ];
    (cleaning, streams, any::<bool>(), table, 0u32..6).prop_map(
        |(cleaning, streams, separate_copies, (cached_map_entries, volatile_map), free)| {
            PageConfig {
                cleaning,
                streams,
                separate_copies,
                cached_map_entries,
                volatile_map,
                background_free_blocks: free,
            }
        },
    )
}

fn layer() -> impl Strategy<Value = FtlConfig> {
    prop_oneof![
        4 => page_config().prop_map(FtlConfig::Page),
        1 => Just(FtlConfig::Block),
        2 => (1u32..6).prop_map(|log_blocks| FtlConfig::Bast { log_blocks }),
        2 => (1u32..6).prop_map(|log_blocks| FtlConfig::Fast { log_blocks }),
    ]
}

fn drive_config() -> impl Strategy<Value = DriveConfig> {
    let geometry = (
        1u32..4,
        1u32..3,
        1u32..3,
        1u32..3,
        1u32..30,
        1u32..20,
        1u32..40,
    )
        .prop_map(
            |(channels, ways, dies, planes, blocks, pages_per_block, page_bytes)| Geometry {
                channels,
                ways,
                dies,
                planes,
                blocks,
                pages_per_block,
                page_bytes,
            },
        );
    let buffer = prop_oneof![
        2 => Just(BufferConfig::None),
        1 => (1u32..12).prop_map(BufferConfig::Memory),
        1 => (1u32..12).prop_map(BufferConfig::Slc),
    ];
    let wear = (any::<bool>(), prop_oneof![Just(0u32), 1u32..4]);
    (geometry, 0.0f64..2.0, layer(), buffer, wear, 0u32..5).prop_map(
        |(geometry, spare, ftl, buffer, (least_worn_first, spread), prefetch_pages)| {
            let spread_erases = if matches!(ftl, FtlConfig::Page(_)) {
                spread
            } else {
                0
            };
            DriveConfig {
                buffer,
                prefetch_pages,
                wear: WearLevelling {
                    least_worn_first,
                    spread_erases,
                },
                ..DriveConfig::new(geometry, Capacity::OverProvisioning(spare), ftl)
            }
        },
    )
}

/// The drive, and the state of its pages that the test expects.
struct Run {
    drive: Drive,
    array: Array,
    classes: u8,
    /// Minimum version that every logical page must have after a power cut.
    durable: Vec<u64>,
    trimmed: Vec<bool>,
    versions: u64,
}

impl Run {
    fn new(config: &DriveConfig) -> Result<Self, FlashError> {
        let mut drive = Drive::new(config)?;
        drive.recorder().record(true);
        let pages = drive.logical_pages();
        let classes = match config.ftl {
            FtlConfig::Page(page) if matches!(page.streams, Streams::Given(_)) => {
                page.streams.count()
            }
            _ => 1,
        };
        Ok(Run {
            array: Array::new(config, pages),
            drive,
            classes,
            durable: vec![0; pages as usize],
            trimmed: vec![false; pages as usize],
            versions: 0,
        })
    }

    fn take(&mut self, step: &Step) {
        let pages = self.drive.logical_pages();
        let done = match step {
            Step::Write(lpns, class) => {
                for lpn in lpns {
                    self.write(&[lpn % pages], class % self.classes);
                }
                // A call with several pages tests layers that rewrite whole blocks. `write` updates
                // the expected versions before it calls the drive.
                let together: Vec<u32> = (0..lpns.len() as u32)
                    .map(|n| (lpns[0].wrapping_add(3 * n)) % pages)
                    .collect();
                self.write(&together, class % self.classes);
                Ok(())
            }
            Step::Stream(first, count) => {
                for n in 0..*count {
                    self.write(&[first.wrapping_add(n) % pages], 0);
                }
                Ok(())
            }
            Step::Read(lpn) => self.read(lpn % pages),
            Step::Trim(lpn) => {
                let index = (lpn % pages) as usize;
                self.trimmed[index] = true;
                // A trim that has not been flushed might or might not survive a power cut.
                self.durable[index] = 0;
                self.drive.trim(lpn % pages)
            }
            Step::Flush => self.flush(),
            Step::Idle(budget_us) => self.drive.idle(*budget_us).map(|_| ()),
            Step::Cut => {
                self.cut();
                Ok(())
            }
        };
        done.expect("a step within the drive");
        self.settle();
    }

    fn write(&mut self, lpns: &[u32], class: u8) {
        for lpn in lpns {
            self.versions += 1;
            self.array.newest[*lpn as usize] = self.versions;
            self.trimmed[*lpn as usize] = false;
        }
        self.drive
            .write_class(lpns, class)
            .expect("within the drive");
        self.settle();
    }

    fn read(&mut self, lpn: u32) -> Result<(), FlashError> {
        let before = self.drive.counters();
        self.drive.read(lpn)?;
        let done = self.drive.counters() - before;
        let sources = done.reads_host + done.buffer_hits + done.prefetch_hits + done.unmapped_reads;
        assert_eq!(sources, 1, "a read comes from one place");
        Ok(())
    }

    /// Executes the recorded operations on the test's flash array.
    fn settle(&mut self) {
        self.array.carry_out(self.drive.recorder().operations());
        self.drive.recorder().clear();
    }

    fn flush(&mut self) -> Result<(), FlashError> {
        self.drive.flush()?;
        for (lpn, durable) in self.durable.iter_mut().enumerate() {
            *durable = if self.trimmed[lpn] {
                0
            } else {
                self.array.newest[lpn]
            };
        }
        Ok(())
    }

    /// Cuts the power. Afterwards the version of every page must be between the last flushed and
    /// the newest version. From then on, the test expects the version that it has found.
    fn cut(&mut self) {
        self.settle();
        self.drive.cut_power();
        for lpn in 0..self.drive.logical_pages() {
            let (index, found) = (lpn as usize, self.array.found(&self.drive, lpn));
            match found {
                Some(version) => {
                    assert!(version >= self.durable[index], "a flushed write was lost");
                    assert!(version <= self.array.newest[index]);
                    self.array.newest[index] = version;
                    self.trimmed[index] = false;
                }
                None => {
                    let never = self.durable[index] == 0 || self.trimmed[index];
                    assert!(never, "a flushed page is gone");
                    self.trimmed[index] = true;
                }
            }
        }
    }

    fn check(&self) {
        for lpn in 0..self.drive.logical_pages() {
            let expected = (!self.trimmed[lpn as usize])
                .then_some(self.array.newest[lpn as usize])
                .filter(|version| *version > 0);
            assert_eq!(self.array.found(&self.drive, lpn), expected, "page {lpn}");
        }
        self.drive.verify().expect("a consistent drive");
        let c = self.drive.counters();
        assert_eq!(
            (c.programs, c.erases),
            (self.array.programs, self.array.erases)
        );
        let kinds = c.programs_host + c.programs_copy + c.programs_padding + c.programs_map;
        assert_eq!(c.programs, kinds);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Every configuration is either refused with an error, or its drive returns the content that
    /// was written last.
    #[test]
    fn the_last_version_is_read(config in drive_config(), steps in prop::collection::vec(step(), 1..120)) {
        let Ok(mut run) = Run::new(&config) else { return Ok(()) };
        for step in &steps {
            run.take(step);
        }
        run.check();
    }

    /// No configuration makes the constructor panic.
    #[test]
    fn any_geometry_is_taken_or_refused(
        shape in (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>()),
        small in (0u32..5, 0u32..70, 0u32..5),
        spare in any::<f64>(),
        layer in layer(),
    ) {
        let big = Geometry {
            channels: shape.0, ways: shape.1, dies: shape.2, planes: 1,
            blocks: shape.3, pages_per_block: small.1, page_bytes: small.2,
        };
        prop_assert!(big.validate().is_ok() == (big.validate() == Ok(())));
        let little = Geometry { channels: small.0, ways: 1, dies: 1, planes: 1, blocks: small.1,
            pages_per_block: small.2, page_bytes: small.2 };
        for capacity in [Capacity::OverProvisioning(spare), Capacity::LogicalPages(shape.0 % 300)] {
            let made = Drive::new(&DriveConfig::new(little, capacity, layer));
            if let Err(error) = made {
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}

/// The smallest drives that the generator of configurations can produce are accepted, and work.
#[test]
fn the_tightest_drives_are_accepted_and_work() {
    let page = |streams| {
        FtlConfig::Page(PageConfig {
            streams,
            ..PageConfig::default()
        })
    };
    // The number of blocks is `blocks_needed`: logical pages / pages of a block + 3 for each write
    // stream.
    let cases = [
        (page(Streams::One), 4, 4, 7),
        (page(Streams::Given(3)), 10, 4, 7),
        (FtlConfig::Block, 3, 4, 8),
        (FtlConfig::Bast { log_blocks: 1 }, 4, 4, 8),
        (FtlConfig::Fast { log_blocks: 1 }, 5, 4, 8),
        (page(Streams::One), 4, 1, 1),
    ];
    for (ftl, blocks, pages_per_block, logical) in cases {
        let geometry = Geometry::one_die(blocks, pages_per_block, 512);
        let config = DriveConfig::new(geometry, Capacity::LogicalPages(logical), ftl);
        let mut run = Run::new(&config).expect("just enough blocks");
        for n in 0..3000u32 {
            run.write(&[n.wrapping_mul(2_654_435_761) % logical], 0);
        }
        run.check();
        let one_less = Geometry::one_die(blocks - 1, pages_per_block, 512);
        let refused = Drive::new(&DriveConfig::new(
            one_less,
            Capacity::LogicalPages(logical),
            ftl,
        ));
        let error = refused.expect_err("one block too few").to_string();
        assert!(error.contains("blocks"), "{error}");
    }
}

#[test]
fn errors_name_the_parameter_and_what_to_do() {
    let layer = FtlConfig::Page(PageConfig::default());
    let error = |geometry, capacity, ftl| {
        let made = Drive::new(&DriveConfig::new(geometry, capacity, ftl));
        made.expect_err("refused").to_string()
    };
    let spare = Capacity::OverProvisioning;
    let good = Geometry::one_die(64, 16, 4096);
    let none = Geometry { planes: 0, ..good };
    assert_eq!(
        error(none, spare(0.1), layer),
        "planes = 0: must be from 1 to 64"
    );
    let huge = Geometry {
        channels: 1000,
        blocks: 1 << 30,
        ..good
    };
    assert!(error(huge, spare(0.1), layer).contains("lower blocks"));
    assert!(error(good, spare(f64::NAN), layer).contains("over_provisioning"));
    assert!(error(good, spare(0.0), layer).contains("raise blocks or over_provisioning"));
    assert!(error(good, Capacity::LogicalPages(0), layer).contains("no logical page"));
    let no_logs = FtlConfig::Bast { log_blocks: 0 };
    assert!(error(good, spare(0.5), no_logs).contains("log_blocks = 0"));
    let both = FtlConfig::Page(PageConfig {
        cached_map_entries: 5,
        volatile_map: true,
        ..PageConfig::default()
    });
    assert!(error(good, spare(0.5), both).contains("volatile_map"));
}

#[test]
fn a_page_beyond_the_end_changes_nothing() {
    let geometry = Geometry::one_die(64, 16, 4096);
    for buffer in [BufferConfig::None, BufferConfig::Memory(4)] {
        let config = DriveConfig {
            buffer,
            ..DriveConfig::new(
                geometry,
                Capacity::LogicalPages(100),
                FtlConfig::Page(PageConfig::default()),
            )
        };
        let mut drive = Drive::new(&config).expect("a valid drive");
        let beyond = Err(FlashError::BeyondEnd {
            lpn: 100,
            logical_pages: 100,
        });
        assert_eq!(drive.write(&[5, 100]), beyond);
        assert_eq!(drive.read(100), beyond);
        assert_eq!(
            drive.trim(NONE).map_err(|e| e.to_string().is_empty()),
            Err(false)
        );
        let class = drive.write_class(&[5], 1);
        assert_eq!(
            class,
            Err(FlashError::UnknownClass {
                class: 1,
                classes: 1
            })
        );
        assert_eq!(drive.counters(), bimetal_flash::Counters::default());
    }
}
