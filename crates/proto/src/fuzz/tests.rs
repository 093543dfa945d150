//! Runs the fuzzers over seeded random bytes, so that they also run as ordinary tests.

/// Numbers from a seed (SplitMix64).
struct Draw(u64);

impl Draw {
    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns bytes that are all equal, bytes that are all small, or arbitrary bytes: each of
    /// these kinds finds different errors.
    fn bytes(&mut self, len_max: u64) -> Vec<u8> {
        let len = self.number() % len_max;
        match self.number() % 4 {
            0 => vec![self.number() as u8; len as usize],
            1 => (0..len).map(|_| (self.number() % 8) as u8).collect(),
            _ => (0..len).map(|_| self.number() as u8).collect(),
        }
    }
}

fn many(target: fn(&[u8]), seeds: std::ops::Range<u64>, len_max: u64) {
    for seed in seeds {
        let bytes = Draw(seed).bytes(len_max);
        if std::panic::catch_unwind(|| target(&bytes)).is_err() {
            panic!("seed {seed}");
        }
    }
}

#[test]
fn any_client_at_an_nbd_server() {
    many(super::nbd_server, 0..4_000, 300);
}

#[test]
fn any_server_at_an_nbd_client() {
    many(super::nbd_client, 0..4_000, 300);
}

#[test]
fn any_initiator_at_a_brp_target() {
    many(super::brp_target, 0..4_000, 300);
}

#[test]
fn any_targets_at_a_brp_session() {
    many(super::brp_initiator, 0..4_000, 600);
}
