//! Transfers both ways at once, begun by either side, under conditions.

use std::thread;

use sietch::net::congestion::Kind;
use sietch_sim::Random;
use sietch_sim::link::{Burst, Direction, LinkConfig, Marking, Mtu, Router};
use sietch_sim::seeds::{self, Budget};

use super::meeting::{Conditions, Family, Outcome, meet};
use super::{kernel, services};

/// Where the kernel accepts transfers.
const KERNEL_PORT: u16 = 7100;
const MILLISECOND: u64 = 1_000_000;

/// The bytes in each direction on each of two connections, one opened by each side.
#[derive(Clone, Copy, Debug)]
struct Load {
    up: u64,
    down: u64,
}

const MEGABYTES: Load = Load { up: 3_000_000, down: 4_000_000 };

fn cell(name: &str, conditions: &Conditions, load: Load) -> Option<Outcome<()>> {
    let Load { up, down } = load;
    let (at_kernel, family) = (conditions.clone(), conditions.family);
    let outcome = meet(
        name,
        conditions,
        move |net| async move {
            net.spawn(services::all(net.clone(), family));
            services::transfer_with_kernel(net, family, KERNEL_PORT, up, down).await;
        },
        move || {
            let listener = kernel::listen(KERNEL_PORT, &at_kernel).expect("the port is free");
            let accepted = thread::spawn(move || kernel::accept_transfer(&listener));
            kernel::transfer_with_sietch(&at_kernel, up, down);
            accepted.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        },
    )?;
    let metrics = &outcome.metrics;
    assert_eq!(metrics.connections_reset + metrics.connections_aborted, 0, "{name}: {metrics:?}");
    assert!(metrics.payload_received >= 2 * up.min(down), "{name}: {metrics:?}");
    Some(outcome)
}

fn path() -> Direction {
    Direction { delay: MILLISECOND, ..Direction::perfect() }
}

/// A path that loses, repeats and reorders.
fn bad_path() -> Direction {
    Direction { loss: 10, duplication: 10, reordering: 20, hold: 2 * MILLISECOND, ..path() }
}

fn over(direction: Direction) -> Conditions {
    Conditions { link: Some(LinkConfig::symmetric(direction)), ..Conditions::default() }
}

#[test]
fn megabytes_cross_a_bare_veth() {
    let load = Load { up: 20_000_000, down: 20_000_000 };
    for family in [Family::V4, Family::V6] {
        let name = format!("megabytes_cross_a_bare_veth {family:?}");
        let Some(outcome) = cell(&name, &Conditions::over(family), load) else { return };
        assert_eq!(outcome.metrics.bad_checksum, 0);
    }
}

#[test]
fn a_bad_path_with_every_choice_of_options() {
    let choices = [
        (Family::V4, true, true, true),
        (Family::V6, true, true, true),
        (Family::V4, false, true, true),
        (Family::V6, true, false, true),
        (Family::V4, false, false, false),
    ];
    for (seed, (family, sack, timestamps, scaling)) in (0..).zip(choices) {
        let conditions = Conditions { family, sack, timestamps, scaling, seed, ..over(bad_path()) };
        let name = format!("a_bad_path {family:?} sack {sack} timestamps {timestamps} scaling {scaling}");
        let Some(outcome) = cell(&name, &conditions, MEGABYTES) else { return };
        let [there, back] = outcome.tallies;
        assert!(there.lost > 20 && back.lost > 20 && there.duplicated > 20 && back.reordered > 20);
    }
}

#[test]
fn damaged_frames_are_noticed() {
    for family in [Family::V4, Family::V6] {
        let conditions = Conditions { family, ..over(Direction { corruption: 20, ..path() }) };
        let name = format!("damaged_frames_are_noticed {family:?}");
        let Some(outcome) = cell(&name, &conditions, MEGABYTES) else { return };
        assert!(outcome.metrics.bad_checksum + outcome.metrics.malformed > 10, "{:?}", outcome.metrics);
    }
}

#[test]
fn loss_in_bursts() {
    let burst = Burst { begin: 3, end: 300, loss: 800 };
    cell("loss_in_bursts", &over(Direction { burst: Some(burst), ..path() }), MEGABYTES);
}

#[test]
fn a_bottleneck_that_marks_or_drops_with_each_congestion_control() {
    let bottleneck = Direction { bandwidth: 100_000_000, queue: 100_000, ..path() };
    let marking = Direction { marking: Marking::Threshold(30_000), ..bottleneck.clone() };
    let choices = [
        (bottleneck.clone(), "cubic", Kind::Cubic, false),
        (bottleneck, "bbr", Kind::NewReno, false),
        (marking, "reno", Kind::Cubic, true),
    ];
    for (direction, congestion, control, ecn) in choices {
        let conditions = Conditions { congestion, control, ecn, ..over(direction) };
        let name = format!("a_bottleneck {congestion} {control:?} ecn {ecn}");
        if cell(&name, &conditions, MEGABYTES).is_none() {
            return;
        }
    }
}

#[test]
fn large_and_small_frames() {
    for (family, mtu) in [(Family::V4, 576), (Family::V6, 1280), (Family::V4, 3400), (Family::V6, 3400)] {
        let conditions =
            Conditions { family, mtu, seed: mtu as u64, ..over(Direction { loss: 5, ..path() }) };
        if cell(&format!("large_and_small_frames {family:?} {mtu}"), &conditions, MEGABYTES).is_none() {
            return;
        }
    }
}

#[test]
fn frames_of_sixty_four_kilobytes() {
    for (family, mtu) in [(Family::V4, 65_535), (Family::V6, 65_264), (Family::V4, 9000)] {
        for unfinished in [true, false] {
            let plain = Conditions { family, mtu, unfinished, ..Conditions::default() };
            let lossy = Conditions {
                family,
                mtu,
                unfinished,
                seed: mtu as u64,
                ..over(Direction { loss: 5, ..path() })
            };
            for conditions in [plain, lossy] {
                let name = format!("frames_of_sixty_four_kilobytes {family:?} {mtu} {unfinished}");
                let Some(outcome) = cell(&name, &conditions, MEGABYTES) else { return };
                let metrics = &outcome.metrics;
                assert_eq!(metrics.bad_checksum + metrics.malformed, 0, "{name}: {metrics:?}");
                // Some of them are large.
                let mean = metrics.bytes_received / metrics.frames_received;
                assert!(conditions.link.is_some() || mean > 2000, "{name}: {mean} bytes a frame");
            }
        }
    }
}

#[test]
fn a_router_on_the_path_accepts_only_smaller_packets() {
    for family in [Family::V4, Family::V6] {
        // Only in Sietch's sending direction: a router's message to the kernel would have to pass
        // the VNIC's filter, which treats it as a forgery.
        let mtu = Some(Mtu { bytes: 1300, router: Router::Answers });
        let link = LinkConfig { there: Direction { mtu, ..path() }, back: path() };
        let conditions = Conditions { family, link: Some(link), ..Conditions::default() };
        let name = format!("a_router_on_the_path {family:?}");
        let Some(outcome) = cell(&name, &conditions, MEGABYTES) else { return };
        // Each of two flows learns it after the burst that it began with.
        let too_big = outcome.tallies[0].too_big;
        assert!((1..300).contains(&too_big), "{name}: {too_big} packets were too big");
    }
}

#[test]
fn tiny_buffers_on_either_side() {
    let load = Load { up: 400_000, down: 400_000 };
    for (kernel_buffer, buffer) in [(Some(2304), 512 << 10), (None, 4096), (Some(2304), 4096)] {
        let conditions = Conditions { kernel_buffer, buffer, ..Conditions::default() };
        if cell(&format!("tiny_buffers {kernel_buffer:?} {buffer}"), &conditions, load).is_none() {
            return;
        }
    }
}

/// Conditions and load of a seed.
fn draw(seed: u64) -> (Conditions, Load) {
    let mut random = Random::new(seed);
    let link = random.chance(850).then(|| LinkConfig::swarm(&mut random)).map(|mut link| {
        // A router's word to the kernel does not pass the filter.
        link.back.mtu = None;
        // Time is real here: what would only be waited for is left to the simulator. A burst lasts
        // until frames have ended it, and between repetitions that back off there are few.
        for direction in [&mut link.there, &mut link.back] {
            direction.loss = direction.loss.min(20);
            direction.burst = direction.burst.map(|burst| Burst { end: burst.end.max(300), ..burst });
            direction
                .outages
                .iter_mut()
                .for_each(|(from, to)| *to = *from + (*to - *from).min(500 * MILLISECOND));
            direction.bandwidth =
                if direction.bandwidth == 8_000_000 { 20_000_000 } else { direction.bandwidth };
        }
        link
    });
    let mut flag = |permille| random.chance(permille);
    let (sack, timestamps, scaling, ecn) = (flag(750), flag(750), flag(850), flag(500));
    let (family, mtu) = *random.pick(&[
        (Family::V4, 1500),
        (Family::V6, 1500),
        (Family::V4, 576),
        (Family::V6, 1280),
        (Family::V6, 3400),
        (Family::V4, 65_264),
    ]);
    let mut link = link;
    if family == Family::V6
        && let Some(link) = &mut link
    {
        // No path of IPv6 is narrower (RFC 8200 section 5), and no sender goes below.
        link.there.mtu = link.there.mtu.filter(|limit| limit.bytes >= 1280);
    }
    let conditions = Conditions {
        family,
        mtu,
        // A damaged packet with such a checksum would be taken.
        unfinished: link.is_none(),
        link,
        seed: random.word(),
        sack,
        timestamps,
        scaling,
        ecn,
        congestion: ["cubic", "reno", "bbr"][random.index(3)],
        kernel_buffer: random.chance(200).then(|| random.between(2304, 100_000) as usize),
        buffer: 1 << random.between(12, 20),
        control: *random.pick(&[Kind::Cubic, Kind::NewReno]),
        alone: std::env::var_os("SIETCH_SIM_THREADS").is_none(),
    };
    // At most some dozens of the smallest windows, for the longest round trips take a quarter of a
    // second.
    let window = conditions.kernel_buffer.unwrap_or(usize::MAX).min(conditions.buffer) as u64;
    let mut bytes = || {
        let size = random.between(0, 21);
        random.below(1 << size).min(window * 50)
    };
    (conditions, Load { up: bytes(), down: bytes() })
}

#[test]
fn random_cells() {
    let budget = Budget { seeds: 6, seconds: 8 };
    seeds::run("it interop::cells::random_cells", &[], budget, |seed| {
        let (conditions, load) = draw(seed);
        if std::env::var_os("SIETCH_SIM_SEED").is_some() {
            eprintln!("{load:?} {conditions:#?}");
        }
        cell(&format!("random_cells {seed}"), &conditions, load);
    });
}
