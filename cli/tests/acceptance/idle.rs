//! An idle system burns no core.

use std::time::Duration;

use crate::client::{Stop, load};
use crate::place::{Place, in_own_network, ticks};

#[test]
fn an_idle_system_takes_under_one_percent_of_a_core() {
    in_own_network("an_idle_system_takes_under_one_percent_of_a_core", || {
        let place = Place::new("idle");
        let up = place.up(&[]);
        for address in [place.vnic(), place.kernel()] {
            let stop = Stop::default();
            std::thread::scope(|scope| {
                let guard = stop.guard();
                scope.spawn(|| load(address, "before", &stop));
                std::thread::sleep(Duration::from_millis(500));
                drop(guard);
            });
        }
        // Connections that say nothing belong to an idle system.
        let idle: Vec<_> = [place.vnic(), place.kernel()]
            .map(|address| crate::client::Client::connect(address).unwrap())
            .into();
        let seconds = crate::number("SIETCH_IDLE_SECONDS", 10);
        let pids = place.pids();
        let before: u64 = pids.iter().map(|pid| ticks(*pid)).sum();
        std::thread::sleep(Duration::from_secs(seconds));
        let used = pids.iter().map(|pid| ticks(*pid)).sum::<u64>() - before;
        let ticks_in_all = seconds * rustix::param::clock_ticks_per_second();
        eprintln!("idle for {seconds} s: {used} of {ticks_in_all} clock ticks of one core");
        // A single tick is the unit of the account.
        assert!(used <= 1.max(ticks_in_all / 100), "{used} of {ticks_in_all}");
        drop(idle);
        up.stop();
    });
}
