//! An idle system uses no processor time.

use std::net::SocketAddr;
use std::time::Duration;

use crate::client::{Client, Stop, load};
use crate::testbed::{Testbed, in_own_network, ticks};

/// Serves for a while, then gets no requests.
fn assert_idle(testbed: &Testbed, options: &[&str], addresses: &[SocketAddr]) {
    let up = testbed.up(options);
    for address in addresses {
        let stop = Stop::default();
        std::thread::scope(|scope| {
            let guard = stop.guard();
            scope.spawn(|| load(*address, "before", &stop));
            std::thread::sleep(Duration::from_millis(500));
            drop(guard);
        });
    }
    // Silent connections belong to an idle system.
    let silent: Vec<_> = addresses.iter().map(|address| Client::connect(*address).unwrap()).collect();
    let seconds = crate::number("SIETCH_IDLE_SECONDS", 6);
    let pids = testbed.pids();
    let before: u64 = pids.iter().map(|pid| ticks(*pid)).sum();
    assert!(before > 0, "the CPU time does not advance");
    std::thread::sleep(Duration::from_secs(seconds));
    let used = pids.iter().map(|pid| ticks(*pid)).sum::<u64>() - before;
    let ticks_in_all = seconds * rustix::param::clock_ticks_per_second();
    eprintln!("{options:?}: idle for {seconds} s: {used} of {ticks_in_all} clock ticks of one core");
    // Processor time is counted in single ticks.
    assert!(used <= 1.max(ticks_in_all / 100), "{options:?}: {used} of {ticks_in_all}");
    drop(silent);
    up.stop();
}

#[test]
fn an_idle_system_takes_under_one_percent_of_a_core() {
    in_own_network("an_idle_system_takes_under_one_percent_of_a_core", || {
        let testbed = Testbed::new("idle");
        assert_idle(&testbed, &[], &[testbed.vnic(), testbed.kernel()]);
        assert_idle(&testbed, &["--net", "linux", "--without-io-uring"], &[testbed.kernel()]);
        assert_idle(&testbed, &["--net", "linux", "--shards", "5"], &[testbed.kernel()]);
    });
}
