//! A page-mapped layer: any logical page can be stored in any physical page of its die.
//!
//! Logical pages are distributed over the dies in turn (page n is on die n mod dies, as in a
//! striped drive), and every die is a separate [`Space`] with its share of the spare flash. Dies
//! therefore clean independently, and a single die is exactly the device of the analytic models: an
//! append point, full blocks, and one victim at a time.
//!
//! Write amplification depends on alpha = physical / logical pages. The physical pages do not
//! include the blocks that can never hold data: the reserve of one free block for each write stream
//! and die. Table pages, if there are any, are in separate blocks.

mod classes;
mod space;
mod tables;
mod victims;

use classes::Classes;
use space::{Core, Space, SpaceConfig};
use tables::{CachedMap, MapStore, SavedMap, TablePages, entries_per_page};

use crate::config::{Cleaning, DriveConfig, PageConfig};
use crate::counters::{Counters, Wear};
use crate::ftl::Ftl;
use crate::geometry::{FlashError, Geometry, NONE, check_page, check_range};
use crate::nand::{Inconsistent, Nand};
use crate::operation::{Purpose, Recorder};

/// Maximum value of `cleaning.choices`: the number of blocks that the policy `Cleaning::Choices`
/// draws at random each time it selects a block to clean.
const CHOICES_MAX: u32 = 1024;

/// The page-mapped layer; see the module documentation.
#[derive(Debug)]
pub(crate) struct PageMapped {
    core: Core,
    logical_pages: u32,
    class_count: u8,
    classes: Classes,
    spaces: Vec<Space>,
    store: MapStore,
    background_free_blocks: u32,
}

impl PageMapped {
    /// Creates an empty layer. Errors: options that are out of range or in conflict, or too few
    /// blocks.
    pub fn new(
        config: &DriveConfig,
        page: &PageConfig,
        logical_pages: u32,
    ) -> Result<Self, FlashError> {
        page.streams.validate()?;
        if let Cleaning::Choices(choices) = page.cleaning {
            check_range("cleaning.choices", choices, CHOICES_MAX)?;
        }
        if page.cached_map_entries > 0 && page.volatile_map {
            return Err(FlashError::Conflict {
                first: "cached_map_entries",
                second: "volatile_map",
                advice: "a cached table is already on flash; set one of them to 0 or false",
            });
        }
        let plan = Plan::new(config, page, logical_pages)?;
        let nand = Nand::new(&config.geometry)?;
        let spaces = plan.spaces(config, page, &nand);
        let store = plan.store(config, page, &nand);
        let map_len = logical_pages as usize + plan.table_pages as usize;
        Ok(PageMapped {
            core: Core {
                nand,
                map: vec![NONE; map_len],
                clock: 0,
            },
            logical_pages,
            class_count: page.streams.count(),
            classes: Classes::new(page.streams, logical_pages),
            spaces,
            store,
            background_free_blocks: page.background_free_blocks,
        })
    }

    #[inline]
    fn die_of(&self, lpn: u32) -> usize {
        match self.spaces.len() as u32 {
            1 => 0,
            dies => (lpn % dies) as usize,
        }
    }

    #[inline]
    fn write_page(&mut self, lpn: u32, given_class: u8) {
        let die = self.die_of(lpn);
        let class = self.classes.of_write(lpn, given_class);
        let space = &mut self.spaces[die];
        space.make_room(&mut self.core, &self.classes, &mut self.store, class);
        // The look-up must be after `make_room`, because cleaning can move the old version and save
        // the table.
        self.store.look_up(&mut self.core, lpn, true);
        let old = self.core.map[lpn as usize];
        if old != NONE {
            space.invalidate(&mut self.core.nand, old);
        }
        space.append(&mut self.core, lpn, class, Purpose::Host);
        self.core.clock += 1;
    }

    /// Restores the validity of all physical pages from the map, after the map has been reverted to
    /// its saved state.
    fn restore_validity(&mut self) {
        self.core.nand.invalidate_everything();
        for (lpn, page) in self.core.map.iter().enumerate() {
            if *page != NONE {
                self.core.nand.revalidate(*page, lpn as u32);
            }
        }
        for space in &mut self.spaces {
            space.recount(&self.core);
        }
        for space in self.store.table_spaces() {
            space.recount(&self.core);
        }
    }
}

impl Ftl for PageMapped {
    fn logical_pages(&self) -> u32 {
        self.logical_pages
    }

    fn fetch(&mut self, lpn: u32, purpose: Purpose) -> Result<bool, FlashError> {
        check_page(lpn, self.logical_pages)?;
        self.store.look_up(&mut self.core, lpn, false);
        let page = self.core.map[lpn as usize];
        if page != NONE {
            self.core.nand.read(page, purpose);
        }
        Ok(page != NONE)
    }

    fn store(&mut self, lpns: &[u32], class: u8) -> Result<(), FlashError> {
        if class >= self.class_count {
            return Err(FlashError::UnknownClass {
                class,
                classes: self.class_count,
            });
        }
        for lpn in lpns {
            check_page(*lpn, self.logical_pages)?;
        }
        for lpn in lpns {
            self.write_page(*lpn, class);
        }
        Ok(())
    }

    fn trim(&mut self, lpn: u32) -> Result<(), FlashError> {
        check_page(lpn, self.logical_pages)?;
        if self.core.map[lpn as usize] == NONE {
            return Ok(());
        }
        self.store.look_up(&mut self.core, lpn, true);
        let die = self.die_of(lpn);
        let page = std::mem::replace(&mut self.core.map[lpn as usize], NONE);
        self.spaces[die].invalidate(&mut self.core.nand, page);
        Ok(())
    }

    fn save_map(&mut self) {
        if let MapStore::Saved(saved) = &mut self.store {
            saved.save(&mut self.core);
        }
    }

    fn locate(&self, lpn: u32) -> Option<u32> {
        let page = *self.core.map.get(lpn as usize)?;
        (lpn < self.logical_pages && page != NONE).then_some(page)
    }

    fn wants_cleaning(&self) -> bool {
        let wanted = self.background_free_blocks;
        self.spaces.iter().any(|space| space.wants_cleaning(wanted))
    }

    fn clean_in_background(&mut self) -> bool {
        let mut cleaned = false;
        for space in &mut self.spaces {
            cleaned |= space.clean_in_background(
                &mut self.core,
                &self.classes,
                &mut self.store,
                self.background_free_blocks,
            );
        }
        cleaned
    }

    fn cut_power(&mut self) {
        match &mut self.store {
            MapStore::InMemory => {}
            MapStore::Cached(cached) => cached.forget(),
            MapStore::Saved(saved) => {
                saved.revert(&mut self.core);
                self.restore_validity();
            }
        }
    }

    fn counters(&self) -> Counters {
        self.core.nand.counters
    }

    fn wear(&self) -> Wear {
        self.core.nand.wear()
    }

    fn recorder(&mut self) -> &mut Recorder {
        &mut self.core.nand.recorder
    }

    fn verify(&self) -> Result<(), Inconsistent> {
        self.core.nand.verify(&self.core.map)?;
        for space in self.spaces.iter().chain(self.store.spaces()) {
            space.verify(&self.core.nand)?;
        }
        Ok(())
    }
}

/// Returns the number of table pages on flash; 0 if the table is only in memory.
fn table_pages(geometry: &Geometry, page: &PageConfig, logical_pages: u32) -> u32 {
    let on_flash = page.cached_map_entries > 0 || page.volatile_map;
    u32::from(on_flash) * logical_pages.div_ceil(entries_per_page(geometry.page_bytes))
}

/// Returns the number of blocks on each die that are set aside for the table: twice the number of
/// blocks that the table fills, and three more for cleaning.
fn table_blocks(geometry: &Geometry, table_pages: u32) -> u32 {
    let die_pages = table_pages.div_ceil(geometry.total_dies());
    match die_pages.div_ceil(geometry.pages_per_block) {
        0 => 0,
        blocks => 2 * blocks + 3,
    }
}

/// Returns the number of blocks that each die needs to store its share of the logical pages and of
/// the mapping table.
pub(crate) fn die_blocks_needed(geometry: &Geometry, page: &PageConfig, logical_pages: u32) -> u64 {
    let table_pages = table_pages(geometry, page, logical_pages);
    let die_pages = logical_pages.div_ceil(geometry.total_dies());
    Space::blocks_needed(die_pages, page.streams.count(), geometry.pages_per_block)
        + u64::from(table_blocks(geometry, table_pages))
}

/// Division of the blocks of a die between data and table.
struct Plan {
    dies: u32,
    die_blocks: u32,
    /// Number of blocks on each die that are set aside for the table.
    table_blocks: u32,
    table_pages: u32,
    entries: u32,
    logical_pages: u32,
}

impl Plan {
    fn new(
        config: &DriveConfig,
        page: &PageConfig,
        logical_pages: u32,
    ) -> Result<Self, FlashError> {
        let geometry = &config.geometry;
        let (dies, die_blocks) = (geometry.total_dies(), geometry.die_blocks());
        let table_pages = table_pages(geometry, page, logical_pages);
        let needed_blocks = die_blocks_needed(geometry, page, logical_pages);
        let die_pages = logical_pages.div_ceil(dies);
        if needed_blocks > u64::from(die_blocks) {
            return Err(FlashError::TooFewBlocks {
                ftl: "a die of the page-mapped layer",
                needed_blocks,
                logical_pages: u64::from(die_pages),
                blocks: u64::from(die_blocks),
                knob: "streams",
            });
        }
        Ok(Plan {
            dies,
            die_blocks,
            table_blocks: table_blocks(geometry, table_pages),
            table_pages,
            entries: entries_per_page(geometry.page_bytes),
            logical_pages,
        })
    }

    fn spaces(&self, config: &DriveConfig, page: &PageConfig, nand: &Nand) -> Vec<Space> {
        let space = |die: u32| {
            let config = SpaceConfig {
                first_block: die * self.die_blocks,
                blocks: self.die_blocks - self.table_blocks,
                classes: page.streams.count(),
                cleaning: page.cleaning,
                separate_copies: page.separate_copies,
                wear: config.wear,
                seed: config.seed.wrapping_add(u64::from(die) << 8),
            };
            Space::new(&config, nand)
        };
        (0..self.dies).map(space).collect()
    }

    fn store(&self, config: &DriveConfig, page: &PageConfig, nand: &Nand) -> MapStore {
        if self.table_pages == 0 {
            return MapStore::InMemory;
        }
        let space = |die: u32| {
            let config = SpaceConfig {
                first_block: (die + 1) * self.die_blocks - self.table_blocks,
                blocks: self.table_blocks,
                classes: 1,
                cleaning: Cleaning::Greedy,
                separate_copies: true,
                wear: config.wear,
                seed: config.seed,
            };
            Space::new(&config, nand)
        };
        let table = TablePages {
            spaces: (0..self.dies).map(space).collect(),
            first: self.logical_pages,
            entries: self.entries,
        };
        if page.volatile_map {
            let blocks = config.geometry.total_blocks();
            MapStore::Saved(SavedMap::new(table, self.table_pages, blocks))
        } else {
            let capacity = page.cached_map_entries;
            MapStore::Cached(CachedMap::new(table, self.table_pages, capacity))
        }
    }
}
