//! The raise of a queue's weight: its factor, its start and its reason.

/// A temporary raise of a queue's weight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Raise {
    /// The factor; 0 and 1 mean no raise.
    pub(super) times: u64,
    pub(super) for_ns: u64,
    pub(super) began_ns: u64,
    /// Number of sectors served since the start.
    pub(super) sectors: u64,
    /// True when the queue behaves like a media player, with requests of a limited rate.
    pub(super) is_soft_real_time: bool,
    /// Start of the raise that the queue got as a new queue, before the present raise. The earlier
    /// raise can resume when the present raise ends. Set only if the queue was recognised as that
    /// of a media player during the earlier raise.
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
