//! The closed queue: each client waits for its answer and then for a think time, and one device
//! serves the requests in the order of arrival.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bimetal_rt::Rng;
use serde::{Deserialize, Serialize};

/// The first operations are not measured. Their number is the number of all operations divided by
/// this divisor (so a tenth).
const UNMEASURED_SHARE: usize = 10;

/// Throughput and response time that the clients received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Served {
    /// Number of completed operations per second.
    pub done_per_s: f64,
    /// Mean time from a request to its answer, in milliseconds.
    pub mean_ms: f64,
}

/// Serves operations with the durations `service_us`, in this order, to `clients` clients. Before
/// each operation, a client thinks for an exponentially distributed time with a mean of clients /
/// `asked_per_s` seconds. If waiting and service took no time, `asked_per_s` operations would
/// complete per second.
pub fn serve(service_us: &[f64], clients: u64, asked_per_s: u64, rng: &mut Rng) -> Served {
    let think_ns = clients as f64 / asked_per_s as f64 * 1e9;
    let mut think = || rng.exponential(think_ns) as u64;
    let mut arrivals: BinaryHeap<Reverse<u64>> = (0..clients).map(|_| Reverse(think())).collect();
    let unmeasured = service_us.len() / UNMEASURED_SHARE;
    let (mut free_ns, mut from_ns, mut response_ns) = (0, 0, 0);
    for (number, service_us) in service_us.iter().enumerate() {
        let Reverse(asked_ns) = arrivals.pop().expect("each client comes again");
        free_ns = free_ns.max(asked_ns) + (service_us * 1e3) as u64;
        if number < unmeasured {
            from_ns = free_ns;
        } else {
            response_ns += free_ns - asked_ns;
        }
        arrivals.push(Reverse(free_ns + think()));
    }
    let measured = (service_us.len() - unmeasured) as f64;
    Served {
        done_per_s: measured / ((free_ns - from_ns) as f64 / 1e9),
        mean_ms: response_ns as f64 / measured / 1e6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(measured: f64, expected: f64, share: f64) -> bool {
        (measured / expected - 1.0).abs() < share
    }

    #[test]
    fn a_device_that_is_always_busy_does_one_operation_for_each_service_time() {
        let service = vec![1000.0; 20_000];
        let served = serve(&service, 32, 100_000, &mut Rng::new(1));
        assert!(near(served.done_per_s, 1000.0, 1e-3), "{served:?}");
        // Little's law for the whole closed queue: clients = throughput x (response time + think
        // time).
        let response_ms = 32.0 - 32.0 / 100_000.0 * 1e3;
        assert!(near(served.mean_ms, response_ms, 1e-3), "{served:?}");
    }

    #[test]
    fn exponential_services_give_what_mean_value_analysis_says() {
        let mut rng = Rng::new(2);
        let service: Vec<f64> = (0..400_000).map(|_| rng.exponential(1000.0)).collect();
        for (clients, asked_per_s) in [(1, 300), (8, 700), (32, 900), (32, 1500)] {
            // The numbers come from mean value analysis (Reiser and Lavenberg 1980), which is exact
            // for one queue with exponential services.
            let think_ms = clients as f64 / asked_per_s as f64 * 1e3;
            let (mut queue, mut response_ms, mut per_ms) = (0.0, 0.0, 0.0);
            for present in 1..=clients {
                response_ms = 1.0 + queue;
                per_ms = present as f64 / (response_ms + think_ms);
                queue = per_ms * response_ms;
            }
            let served = serve(&service, clients, asked_per_s, &mut rng);
            // The mean of 400,000 service times has a standard error of 0.16 %; the queue length
            // varies more.
            assert!(near(served.done_per_s, per_ms * 1e3, 0.01), "{served:?}");
            assert!(
                near(served.mean_ms, response_ms, 0.05),
                "{served:?}, {response_ms} ms expected"
            );
        }
    }
}
