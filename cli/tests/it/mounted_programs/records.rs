//! Programs that write records, several at once, and what becomes of them: appends, mappings, ends.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{PATIENCE, PAUSE, Program, Served, Side};
use crate::file_system::Running;

/// Bytes of a record.
pub(super) const RECORD: usize = 40;

/// The longest that a client may hold up others, and a moment more.
const FENCED_AFTER: Duration = Duration::from_secs(7);

/// Letters and numbers of the records in some bytes.
pub(super) struct Records(Vec<(u8, u64)>);

impl Records {
    /// Each record is whole, and none is there twice.
    pub(super) fn of(bytes: &[u8]) -> Self {
        assert_eq!(bytes.len() % RECORD, 0, "the last record is torn");
        let records: Vec<_> = bytes.chunks(RECORD).map(parse).collect();
        let different: BTreeSet<_> = records.iter().collect();
        assert_eq!(different.len(), records.len(), "a record is there twice");
        Self(records)
    }

    fn read(path: &Path) -> Self {
        Self::of(&fs::read(path).expect("read the records"))
    }

    pub(super) fn numbers(&self, letter: u8) -> Vec<u64> {
        self.0.iter().filter(|(each, _)| *each == letter).map(|(_, number)| *number).collect()
    }

    /// Every record of a letter is there, in its order.
    fn all(&self, letter: u8, count: u64) {
        assert_eq!(self.numbers(letter), (0..count).collect::<Vec<_>>(), "of {}", char::from(letter));
    }
}

fn parse(bytes: &[u8]) -> (u8, u64) {
    let text = String::from_utf8_lossy(bytes);
    let rest = bytes[10..].iter().rev().skip(1);
    assert!(rest.copied().all(|byte| byte == b'.') && bytes.ends_with(b"\n"), "{text:?} is no record");
    (bytes[0], text[2..10].parse().unwrap_or_else(|_| panic!("{text:?} is no record")))
}

/// The records of a program's output: those that it has written before its end.
pub(super) fn acknowledged(program: &Program) -> Records {
    let bytes = program.output();
    Records::of(&bytes[..bytes.len() - bytes.len() % RECORD])
}

pub(super) fn missing(there: &Records, acknowledged: &Records) -> Vec<(u8, u64)> {
    let there: BTreeSet<_> = there.0.iter().copied().collect();
    acknowledged.0.iter().copied().filter(|record| !there.contains(record)).collect()
}

#[test]
fn appends_of_four_processes_are_all_there_once() {
    let Some(served) = Served::start("appends") else { return };
    let sides = [(b'A', Side::Library), (b'B', Side::Library), (b'C', Side::Mount), (b'D', Side::Mount)];
    let count = 400;
    let mut programs: Vec<_> = sides
        .iter()
        .map(|(letter, side)| {
            let letter = char::from(*letter).to_string();
            let arguments = ["append", "records", &letter, &count.to_string()];
            Program::start(&served, &letter, served.records(*side, &arguments))
        })
        .collect();
    programs.iter_mut().for_each(Program::succeeded);
    let records = Records::read(&served.testbed.file("records"));
    for (letter, _) in sides {
        records.all(letter, count);
    }
}

#[test]
fn calls_of_many_pieces_are_whole_while_others_use_the_file() {
    let Some(served) = Served::start_on("pieces", "data") else { return };
    let mut programs: Vec<_> = ["A", "B", "C", "D"]
        .into_iter()
        .map(|letter| {
            let arguments = ["pieces", "pieces", letter, "1000"];
            Program::start(&served, letter, served.records(Side::Library, &arguments))
        })
        .collect();
    programs.iter_mut().for_each(Program::succeeded);
}

#[test]
fn writers_of_one_position_do_not_overlap() {
    let Some(served) = Served::start("position") else { return };
    for (mode, letters) in [("threads", &b"ABCD"[..]), ("forks", b"AB")] {
        let arguments = [mode, mode, "A", "500"];
        Program::start(&served, mode, served.records(Side::Library, &arguments)).succeeded();
        let records = Records::read(&served.testbed.file(mode));
        for letter in letters {
            records.all(*letter, 500);
        }
    }
}

#[test]
fn a_file_that_takes_a_number_gets_whole_records() {
    let Some(served) = Served::start("rotates") else { return };
    let arguments = ["rotates", "log", "A", "1500"];
    Program::start(&served, "rotates", served.records(Side::Library, &arguments)).succeeded();
    let name = |at: u32| if at == 0 { "log".to_owned() } else { format!("log.{at}") };
    let files = (0..=40).map(|at| fs::read(served.testbed.file(&name(at))).expect("read a log"));
    let records = Records::of(&files.collect::<Vec<_>>().concat());
    for letter in [b'A', b'B'] {
        let mut numbers = records.numbers(letter);
        numbers.sort_unstable();
        assert_eq!(numbers, (0..1500).collect::<Vec<_>>());
    }
}

#[test]
fn a_thread_is_cancelled_between_its_writes() {
    let Some(served) = Served::start("cancels") else { return };
    Program::start(&served, "cancels", served.records(Side::Library, &["cancels", "file", "X", "1"]))
        .succeeded();
}

#[test]
fn a_child_of_a_system_call_has_the_files() {
    let Some(served) = Served::start("clones") else { return };
    Program::start(&served, "clones", served.records(Side::Library, &["clones", "file", "Y", "1"]))
        .succeeded();
    let records = Records::read(&served.testbed.file("file"));
    records.all(b'Y', 21);
}

#[test]
fn a_handler_writes_whatever_it_interrupts() {
    let Some(served) = Served::start("handler") else { return };
    let mut program = Program::start(
        &served,
        "handler",
        served.records(Side::Library, &["handler", "records", "A", "3000"]),
    );
    program.succeeded();
    let records = Records::read(&served.testbed.file("records"));
    records.all(b'A', 3000);
    let ticks = String::from_utf8_lossy(&program.output()).trim().parse().expect("how many ticks");
    records.all(b'B', ticks);
}

#[test]
fn a_mapping_shows_what_another_program_writes() {
    let Some(served) = Served::start("mapping") else { return };
    // The writer has the file before it is mapped, and after.
    let file = served.testbed.file("numbers");
    let mut writer = Program::start(
        &served,
        "writer",
        served.records(Side::Library, &["counts", "numbers", "A", "1000", "-v"]),
    );
    let begun = Instant::now();
    while fs::metadata(&file).map_or(0, |found| found.len()) == 0 {
        assert!(begun.elapsed() < PATIENCE, "nothing is written");
    }
    let mut reader =
        Program::start(&served, "reader", served.records(Side::Library, &["maps", "numbers", "A", "1000"]));
    writer.succeeded();
    reader.succeeded();
}

#[test]
fn what_a_killed_program_wrote_is_there() {
    let Some(served) = Served::start("killed-program") else { return };
    let file = served.testbed.file("records");
    for round in 0..5 {
        // At first alone, then with another one that takes the file from it.
        let other = (round % 2 == 1).then(|| {
            let arguments = ["append", "records", "B", "100000000", "-v"];
            Program::start(&served, &format!("other{round}"), served.records(Side::Library, &arguments))
        });
        let arguments = ["append", "records", "A", "100000000", "-v"];
        let mut program =
            Program::start(&served, &format!("killed{round}"), served.records(Side::Library, &arguments));
        program.wait_for_output(RECORD * 50 * (round + 1));
        program.signal(Signal::KILL);
        assert!(!program.ended().success());
        if let Some(mut other) = other {
            other.signal(Signal::KILL);
            assert!(!other.ended().success());
            assert_eq!(missing(&Records::read(&file), &acknowledged(&other)), []);
        }
        let there = Records::read(&file);
        assert_eq!(missing(&there, &acknowledged(&program)), []);
        assert!(there.numbers(b'A').is_sorted(), "in the order of the writes");
        fs::remove_file(&file).expect("remove the records");
    }
}

#[test]
fn programs_get_errors_when_the_service_is_killed() {
    let Some(mut served) = Served::start("killed-service") else { return };
    let arguments = ["append", "records", "A", "100000000", "-v"];
    let mut program = Program::start(&served, "program", served.records(Side::Library, &arguments));
    let mut thread = Program::start(
        &served,
        "threads",
        served.records(Side::Library, &["threads", "other", "A", "100000000", "-v"]),
    );
    program.wait_for_output(RECORD * 100);
    thread.wait_for_output(RECORD * 100);
    served.service.signal(Signal::KILL);
    for program in [&mut program, &mut thread] {
        let status = program.ended();
        assert_eq!(status.code(), Some(3), "it gets an error: {status}: {}", program.errors());
    }
    assert!(!served.service.ended() && !served.mount.ended());
    let service = Running::start(&served.testbed, &["serve", "store"]);
    let mount = Running::start(&served.testbed, &["mount", "store", "mnt"]);
    let there = Records::read(&served.testbed.file("records"));
    assert_eq!(missing(&there, &acknowledged(&program)), [], "what was acknowledged is there");
    drop((mount, service));
}

/// Starts a program that writes without end, stops it, and has another process use the file until
/// the program is no client any more.
fn stop(served: &Served, mode: &str, other: impl FnOnce(&Path)) -> Program {
    let arguments = [mode, "records", "A", "100000000", "-v"];
    let program = Program::start(served, mode, served.records(Side::Library, &arguments));
    program.wait_for_output(RECORD * 100);
    program.signal(Signal::STOP);
    other(&served.testbed.file("records"));
    std::thread::sleep(FENCED_AFTER);
    program
}

#[test]
fn a_program_that_was_stopped_goes_on() {
    let Some(served) = Served::start("stopped") else { return };
    let file = served.testbed.file("records");
    let mut program = stop(&served, "writes", |file| {
        fs::read(file).expect("read the records");
    });
    assert_eq!(missing(&Records::read(&file), &acknowledged(&program)), []);
    let stopped = program.output().len();
    program.signal(Signal::CONT);
    program.wait_for_output(stopped + RECORD * 100);
    program.signal(Signal::KILL);
    assert!(!program.ended().success());
    assert_eq!(missing(&Records::read(&file), &acknowledged(&program)), []);
}

#[test]
fn a_program_that_was_stopped_appends_nothing_twice() {
    let Some(served) = Served::start("stopped-append") else { return };
    let file = served.testbed.file("records");
    let append = |file: &Path, number| {
        let mut appends = OpenOptions::new().append(true).open(file).expect("open the records");
        appends.write_all(&record(b'Z', number)).expect("append");
    };
    let mut program = stop(&served, "append", |file| append(file, 0));
    append(&file, 1);
    let stopped = program.output().len();
    program.signal(Signal::CONT);
    // Whether the append that it was in the middle of has happened is not known: that is an error.
    let goes_on = |program: &Program| program.output().len() > stopped + RECORD * 100;
    let begun = Instant::now();
    while !goes_on(&program) && program.errors().is_empty() {
        assert!(begun.elapsed() < PATIENCE, "the program hangs");
        std::thread::sleep(PAUSE);
    }
    assert!(program.errors().is_empty() || program.errors().contains("Input/output error"));
    program.signal(Signal::KILL);
    assert!(!program.ended().success());
    let there = Records::read(&file);
    assert_eq!(missing(&there, &acknowledged(&program)), []);
    there.all(b'Z', 2);
}

#[test]
fn a_number_that_a_standard_stream_has_reopened_is_another_file() {
    let Some(served) = Served::start("standard") else { return };
    let arguments = ["standard", "records", "A", "3"];
    Program::start(&served, "standard", served.records(Side::Library, &arguments)).succeeded();
    Records::read(&served.testbed.file("records")).all(b'A', 3);
    assert_eq!(Records::read(&served.testbed.file("reopened")).0, [(b'A', 3)]);
}

/// All memory is lost at once with all processes, and what was written to disk is served again.
fn lose_memory(served: Served, programs: &mut [Program]) -> Served {
    let Served { mount, service, testbed } = served;
    service.signal(Signal::KILL);
    for program in programs {
        program.signal(Signal::KILL);
        assert!(!program.ended().success());
    }
    drop((service, mount));
    testbed.lose_memory();
    let service = Running::start(&testbed, &["serve", "store"]);
    let mount = Running::start(&testbed, &["mount", "store", "mnt"]);
    Served { mount, service, testbed }
}

#[test]
fn a_sync_of_one_descriptor_is_of_what_another_one_wrote() {
    let Some(served) = Served::start_on("sync-other", "data") else { return };
    let arguments = ["syncs", "records", "A", "20"];
    let program = Program::start(&served, "syncs", served.records(Side::Library, &arguments));
    program.wait_for_output("synced\n".len());
    let served = lose_memory(served, &mut [program]);
    Records::read(&served.testbed.file("records")).all(b'A', 20);
}

#[test]
fn a_sync_by_a_user_of_the_mount_is_of_what_a_program_wrote() {
    let Some(served) = Served::start_on("sync-mount", "data") else { return };
    fs::write(served.testbed.file("records"), b"").expect("make a file");
    let waiting =
        Program::start(&served, "waits", served.records(Side::Mount, &["waits", "records", "A", "0"]));
    waiting.wait_for_output("waits\n".len());
    let arguments = ["holds", "records", "A", "20"];
    let writer = Program::start(&served, "writer", served.records(Side::Library, &arguments));
    writer.wait_for_output("written\n".len());
    waiting.signal(Signal::USR1);
    waiting.wait_for_output("waits\nsynced\n".len());
    let served = lose_memory(served, &mut [writer, waiting]);
    Records::read(&served.testbed.file("records")).all(b'A', 20);
}

#[test]
fn a_program_that_does_nothing_leaves_the_files_of_a_service_that_ended() {
    let Some(served) = Served::start_on("idle", "data") else { return };
    let arguments = ["holds", "records", "A", "20"];
    let program = Program::start(&served, "holds", served.records(Side::Library, &arguments));
    program.wait_for_output("written\n".len());
    let Served { mount, service, testbed } = served;
    service.signal(Signal::KILL);
    drop((service, mount));
    let begun = Instant::now();
    let mut service = loop {
        let mut service = testbed.sietch(&["serve", "store"]).spawn().expect("start sietch");
        let held = Instant::now() + Duration::from_millis(500);
        while service.try_wait().expect("wait").is_none() && Instant::now() < held {
            std::thread::sleep(PAUSE);
        }
        if service.try_wait().expect("wait").is_none() {
            break service;
        }
        assert!(begun.elapsed() < PATIENCE, "the program still has the files");
    };
    service.kill().expect("end the service");
    service.wait().expect("its end");
}

fn record(letter: u8, number: u64) -> Vec<u8> {
    let mut bytes = format!("{} {number:08}", char::from(letter)).into_bytes();
    bytes.resize(RECORD - 1, b'.');
    bytes.push(b'\n');
    bytes
}
