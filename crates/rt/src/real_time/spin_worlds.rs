//! Tests of the choice between busy-polling and sleeping, in simulated machines with a virtual
//! clock.
//!
//! The latencies of the simulated machines were measured: a ping-pong of 28 and 4112 bytes over a
//! UNIX socket in a virtual machine of two cores took 70 us when both ends slept on cores of their
//! own, 27 us when one end busy-polled and 11 us when both did. With a compute-bound process on the
//! other core, both ends shared the remaining core, and the same ping-pong took 9 us when both
//! slept, 18 us when one end busy-polled, and 95 us when both did: each end polled without success
//! until the other end was given the core.

use std::time::Duration;

use super::SPIN_DEFAULT;
use super::spin::Spin;
use crate::rng::Rng;
use crate::time::Instant;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A simulated thread that asks [`Spin`] how to wait and reports its waits to it.
struct Thread {
    spin: Spin,
    now: Instant,
    done: u64,
    /// Time spent on busy-polling so far.
    polled: Duration,
}

impl Thread {
    fn new() -> Thread {
        Thread {
            spin: Spin::new(SPIN_DEFAULT),
            now: Instant::from_ns(0),
            done: 0,
            polled: Duration::ZERO,
        }
    }

    /// Begins a wait; returns true when the wait begins by busy-polling.
    fn begins(&mut self) -> bool {
        self.spin.budget(self.now, self.done).is_some()
    }

    /// Ends the wait. `polls` is true if the wait began with busy-polling. `polled` is the time
    /// after which busy-polling would find a completion, and `slept` is the time until a sleeping
    /// thread is awake. If the wait began with busy-polling and `polled` is within the busy-polling
    /// limit, the wait takes `polled`. If the thread busy-polls without success, the wait takes the
    /// busy-polling limit and then `slept`. If the thread sleeps immediately, the wait takes
    /// `slept`.
    fn ends(&mut self, polls: bool, polled: Duration, slept: Duration) {
        let took = match polls {
            true if polled <= SPIN_DEFAULT => {
                self.spin.found();
                self.polled += polled;
                polled
            }
            true => {
                self.spin.slept(SPIN_DEFAULT + slept, true);
                self.polled += SPIN_DEFAULT;
                SPIN_DEFAULT + slept
            }
            false => {
                self.spin.slept(slept, false);
                slept
            }
        };
        self.now += took;
    }

    /// Processes one request.
    fn works(&mut self, work: Duration) {
        self.done += 4096;
        self.now += work;
    }
}

/// A client that sends one request after another, and the machine of the client and the server.
#[derive(Clone, Copy)]
struct World {
    /// Time that the server works on a request.
    work_us: u32,
    /// Time from an answer of the server until the next request arrives, if the server busy-polls.
    polled_us: u32,
    /// Time from an answer of the server until the server sees the next request, if the server
    /// sleeps. The time includes the wake-up of the server.
    slept_us: u32,
    /// Maximum deviation, in percent, of the work time and of the two waiting times. The deviation
    /// is drawn at random for each millisecond.
    jitter_percent: u32,
    /// Number of waits in a thousand that are 3 ms longer than usual, because another process uses
    /// the processor for its time slice of 3 ms.
    stalls: u64,
}

/// A machine without other processes. The client and the server each have a core of their own, and
/// the core is idle while its process sleeps.
const QUIET: World = World {
    work_us: 7,
    polled_us: 20,
    slept_us: 63,
    jitter_percent: 0,
    stalls: 0,
};
/// A quiet machine on which a wake-up takes longer than on [`QUIET`].
const QUIET_AND_SLOW: World = World {
    polled_us: 45,
    slept_us: 105,
    ..QUIET
};
/// The client and the server share a core.
const BUSY: World = World {
    polled_us: 11,
    slept_us: 2,
    ..QUIET
};
/// The client gets the core only when the server sleeps.
const IN_VAIN: World = World {
    polled_us: u32::MAX,
    slept_us: 2,
    ..QUIET
};

const fn noisy(world: World) -> World {
    World {
        jitter_percent: 30,
        stalls: 1,
        ..world
    }
}

impl World {
    /// Returns the time of a round trip if each wait begins with busy-polling (`polls` is true) or
    /// with sleeping (`polls` is false).
    fn round_trip(&self, polls: bool) -> Duration {
        let us = match polls {
            true if Duration::from_micros(self.polled_us.into()) > SPIN_DEFAULT => {
                self.slept_us + SPIN_DEFAULT.as_micros() as u32
            }
            true => self.polled_us,
            false => self.slept_us,
        };
        Duration::from_micros((self.work_us + us).into())
    }

    fn is_polling_better(&self) -> bool {
        self.round_trip(true) < self.round_trip(false)
    }
}

/// A server and its world.
struct Server {
    thread: Thread,
    rng: Rng,
    jitter: (u64, u64),
}

/// Counters of a server's run.
struct Ran {
    operations: u32,
    /// Number of operations for which the server waited in the better of the two ways, busy-polling
    /// or sleeping.
    well: u32,
}

impl Ran {
    /// Returns the percentage of waits that used the faster method: busy-polling or sleeping.
    fn well_percent(&self) -> u32 {
        self.well * 100 / self.operations
    }
}

impl Server {
    fn new(seed: u64) -> Server {
        Server {
            thread: Thread::new(),
            rng: Rng::new(seed),
            jitter: (0, 100),
        }
    }

    fn run(&mut self, world: World, time: Duration) -> Ran {
        let end = self.thread.now + time;
        let mut ran = Ran {
            operations: 0,
            well: 0,
        };
        while self.thread.now < end {
            let polls = self.thread.begins();
            let stall = match self.rng.below(1000) < world.stalls {
                true => 3 * MS,
                false => Duration::ZERO,
            };
            let polled = self.jittered(world, world.polled_us) + stall;
            let slept = self.jittered(world, world.slept_us) + stall;
            self.thread.ends(polls, polled, slept);
            let work = self.jittered(world, world.work_us);
            self.thread.works(work);
            ran.operations += 1;
            ran.well += u32::from(polls == world.is_polling_better());
        }
        ran
    }

    fn jittered(&mut self, world: World, us: u32) -> Duration {
        let ms = self.thread.now.as_ns() / 1_000_000;
        if self.jitter.0 != ms {
            let jitter = u64::from(world.jitter_percent);
            self.jitter = (ms, 100 - jitter + self.rng.below(2 * jitter + 1));
        }
        Duration::from_nanos(u64::from(us) * 10 * self.jitter.1)
    }
}

#[test]
fn it_waits_in_the_way_that_gets_more_done() {
    for (name, world) in [
        ("quiet", QUIET),
        ("quiet and slow", QUIET_AND_SLOW),
        ("busy", BUSY),
        ("in vain", IN_VAIN),
    ] {
        let mut server = Server::new(1);
        server.run(world, SECOND / 10);
        let ran = server.run(world, SECOND);
        assert!(ran.well_percent() >= 90, "{name}: {}", ran.well_percent());
    }
}

#[test]
fn noise_does_not_change_that() {
    for (name, world) in [
        ("quiet", QUIET),
        ("quiet and slow", QUIET_AND_SLOW),
        ("busy", BUSY),
        ("in vain", IN_VAIN),
    ] {
        for seed in 0..100 {
            let mut server = Server::new(seed);
            server.run(noisy(world), SECOND / 10);
            let ran = server.run(noisy(world), 2 * SECOND);
            let well = ran.well_percent();
            assert!(well >= 85, "{name}, seed {seed}: {well}");
        }
    }
}

/// Maximum time that a server is allowed to need, after its world (its client and machine) has
/// changed, to choose the way to wait that is better in the new world.
const LEAVES_WITHIN: Duration = Duration::from_millis(320);

#[test]
fn a_change_of_the_machine_is_noticed() {
    for seed in 0..20 {
        let mut server = Server::new(seed);
        for (name, world) in [
            ("quiet", QUIET),
            ("busy", BUSY),
            ("quiet again", QUIET),
            ("in vain", IN_VAIN),
            ("slow after in vain", QUIET_AND_SLOW),
            ("busy at last", BUSY),
            ("slow after busy", QUIET_AND_SLOW),
        ] {
            server.run(noisy(world), LEAVES_WITHIN);
            let ran = server.run(noisy(world), 2 * SECOND);
            let well = ran.well_percent();
            assert!(well >= 85, "{name}, seed {seed}: {well}");
        }
    }
}

#[test]
fn polling_in_vain_ends_after_few_waits() {
    let mut server = Server::new(1);
    server.run(QUIET, 2 * SECOND);
    let before = server.thread.polled;
    let ran = server.run(IN_VAIN, SECOND / 10);
    let vain = (server.thread.polled - before).as_micros() / SPIN_DEFAULT.as_micros();
    // Maximum number of unsuccessful polls. The first 16 can still be judged together with earlier
    // successful waits, and after 32 more the server chooses sleeping. Three trials follow, after
    // 16, 48 and 112 ms, with at most 32 unsuccessful polls each.
    assert!(ran.operations > 5_000 && vain <= 16 + 4 * 32, "{vain}");
}

#[test]
fn an_idle_thread_takes_no_processor_time() {
    let mut thread = Thread::new();
    for _ in 0..1_000 {
        let polls = thread.begins();
        thread.ends(polls, SECOND, SECOND);
    }
    assert_eq!(thread.polled, Duration::ZERO);
    let mut server = Server::new(1);
    server.run(QUIET, SECOND);
    let before = server.thread.polled;
    for _ in 0..1_000 {
        let polls = server.thread.begins();
        server.thread.ends(polls, SECOND, SECOND);
    }
    // After the client has stopped sending, the thread busy-polls in at most one further wait.
    assert!(server.thread.polled - before <= SPIN_DEFAULT);
}

/// Returns the share of time that the thread spends on busy-polling, in thousandths, if requests
/// arrive at the interval `every`. These requests follow a conversation (requests that follow each
/// other closely) in which busy-polling was the better way.
fn polled_permille(every: Duration) -> u128 {
    let mut server = Server::new(1);
    server.run(QUIET, SECOND);
    let thread = &mut server.thread;
    let (polled, began) = (thread.polled, thread.now);
    while thread.now < began + 10 * SECOND {
        let polls = thread.begins();
        thread.ends(polls, every, every);
        thread.works(20 * MS / 1000);
    }
    (thread.polled - polled).as_micros() * 1000 / thread.now.since(began).as_micros()
}

#[test]
fn rare_requests_take_little_processor_time() {
    assert!(polled_permille(10 * MS) < 1);
    // If busy-polling finds no completions, the thread stops busy-polling, however often requests
    // arrive.
    for every_us in [5_000, 2_000, 1_000, 999, 500, 400, 200, 150, 110] {
        let permille = polled_permille(Duration::from_micros(every_us));
        assert!(permille <= 20, "every {every_us} us: {permille}");
    }
}

#[test]
fn the_waits_of_one_request_are_no_conversation() {
    let mut thread = Thread::new();
    for _ in 0..1_000 {
        for wait in [10 * MS, MS / 20, MS / 20, MS / 20, MS / 20, MS / 20] {
            let polls = thread.begins();
            thread.ends(polls, wait, wait);
        }
        thread.works(MS / 50);
    }
    assert_eq!(thread.polled, Duration::ZERO);
}

/// Two threads that exchange messages and both choose how they wait. The time of a round trip
/// depends on which of the two busy-poll.
struct Pair {
    ends: [Thread; 2],
}

/// Function that returns the time in microseconds for which one end waits for the other end. `own`
/// is true if the waiting end busy-polls, and `other` is true if the other end busy-polls. `None`:
/// the waiting end polls without success.
type Waits = fn(own: bool, other: bool) -> Option<u32>;

fn quiet_pair(own: bool, other: bool) -> Option<u32> {
    Some(match (own, other) {
        (false, false) => 65,
        (true, true) => 6,
        (true, false) | (false, true) => 22,
    })
}

fn busy_pair(own: bool, other: bool) -> Option<u32> {
    match (own, other) {
        (true, true) => None,
        (false, false) => Some(4),
        (true, false) | (false, true) => Some(13),
    }
}

impl Pair {
    fn new() -> Pair {
        Pair {
            ends: [Thread::new(), Thread::new()],
        }
    }

    /// Runs for `time` and returns the number of operations per second.
    fn run(&mut self, waits: Waits, time: Duration) -> u128 {
        let us = |us: u32| Duration::from_micros(us.into());
        let began = self.ends[0].now;
        let mut operations = 0;
        while self.ends[0].now < began + time {
            let polls = [self.ends[0].begins(), self.ends[1].begins()];
            for (end, other) in [(0, 1), (1, 0)] {
                let wait = waits(polls[end], polls[other]);
                let (polled, slept) = match wait {
                    Some(wait) => (us(wait), us(wait)),
                    None => (Duration::MAX, us(4)),
                };
                self.ends[end].ends(polls[end], polled, slept);
                self.ends[end].works(us(5));
            }
            // A round trip ends for both at the same time.
            let now = self.ends[0].now.max(self.ends[1].now);
            self.ends.iter_mut().for_each(|end| end.now = now);
            operations += 1;
        }
        operations * 1_000_000 / self.ends[0].now.since(began).as_micros()
    }
}

#[test]
fn two_ends_that_both_choose_agree() {
    let mut pair = Pair::new();
    for round in 0..5 {
        // The best possible rates are 90 thousand operations a second on the quiet machine and 111
        // thousand on the busy one.
        pair.run(quiet_pair, LEAVES_WITHIN);
        let quiet = pair.run(quiet_pair, 2 * SECOND);
        assert!(quiet >= 75_000, "round {round}: {quiet}");
        pair.run(busy_pair, LEAVES_WITHIN);
        let busy = pair.run(busy_pair, 2 * SECOND);
        assert!(busy >= 90_000, "round {round}: {busy}");
    }
}
