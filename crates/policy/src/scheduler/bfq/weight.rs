//! The weight of a queue: by how much it is raised, since when and why.

/// A weight that is raised for a while.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Raise {
    /// How many times; 0 and 1 are not at all.
    pub(super) times: u64,
    pub(super) for_ns: u64,
    pub(super) began_ns: u64,
    /// Sectors served since.
    pub(super) sectors: u64,
    /// It is raised because it asks like a player, with short requests at times of its own.
    pub(super) is_soft_real_time: bool,
    /// When it was raised as that of a program that starts, and became one that plays.
    pub(super) before_ns: Option<u64>,
}

impl Raise {
    pub(super) fn new(times: u64, for_ns: u64, is_soft_real_time: bool, now_ns: u64) -> Raise {
        Raise {
            times,
            for_ns,
            began_ns: now_ns,
            sectors: 0,
            is_soft_real_time,
            before_ns: None,
        }
    }

    pub(super) fn factor(&self) -> u64 {
        self.times.max(1)
    }

    pub(super) fn is_up(&self) -> bool {
        self.times > 1
    }
}
