//! The suite itself: two executors without the shim agree always, and what a program writes it
//! reads.

use std::path::Path;
use std::time::Duration;

use sietch_posix_oracle::generate;
use sietch_posix_oracle::program::Program;
use sietch_posix_oracle::session::{Session, Setting};
use sietch_posix_oracle::suite::{Demand, Subject, Suite};

fn plain() -> Setting {
    Setting::plain(Path::new(env!("CARGO_BIN_EXE_sietch-socket-calls")))
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn the_kernel_agrees_with_itself() {
    let suite = Suite {
        kernel: plain(),
        shim: plain(),
        // The same programs each time.
        subject: Subject::Sockets,
        seed: number("SIETCH_POSIX_SEED", 1),
        programs: number("SIETCH_POSIX_KERNEL_PROGRAMS", 300),
        time: Duration::from_secs(600),
        demand: Demand::Same,
        workers: 6,
        except: &[],
    };
    let summary = suite.run(3).expect("executors");
    println!("{summary:?}");
    assert!(summary.failures.is_empty(), "{}", summary.failures.join("\n"));
    let doubtful = summary.undetermined + summary.once;
    assert!(
        doubtful * 100 <= summary.programs,
        "of {} programs {doubtful} are not determined",
        summary.programs
    );
}

#[test]
fn the_kernel_agrees_with_itself_about_files() {
    let folder = std::env::temp_dir().join(format!("sietch-file-calls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let setting = Setting { folder: Some(folder.clone()), ..plain() };
    let suite = Suite {
        kernel: setting.clone(),
        shim: setting,
        subject: Subject::Files,
        seed: number("SIETCH_POSIX_SEED", 1),
        programs: number("SIETCH_POSIX_KERNEL_PROGRAMS", 100),
        time: Duration::from_secs(600),
        demand: Demand::Same,
        workers: 2,
        except: &[],
    };
    let summary = suite.run(3).expect("executors");
    std::fs::remove_dir_all(&folder).expect("remove the folder");
    println!("{summary:?}");
    assert!(summary.failures.is_empty(), "{}", summary.failures.join("\n"));
    assert_eq!(summary.undetermined + summary.once, 0);
    assert!(summary.steps > 10 * summary.programs, "programs of files have many steps");
}

#[test]
fn every_program_is_written_and_read_back() {
    for seed in 0..2000 {
        let program = generate::program(seed);
        assert_eq!(Program::read(&program.to_string()), Ok(program), "seed {seed}");
        let program = generate::files::program(seed);
        assert_eq!(Program::read(&program.to_string()), Ok(program), "seed {seed}, files");
    }
}

#[test]
fn a_call_that_sleeps_is_interrupted_and_restarted() {
    let program = "
        m socket f0 inet stream - 0
        m bind f0 lo4:0
        m listen f0 5
        m accept f0 f1 128
        m restart 1
        m accept f0 f1 128
        m fork 1
        c1 accept f0 f1 -1
        c1 exec
        c1 accept f0 f1 -1
        c1 exit 7
        t1 start accept f0 f2 -1
        join t1
    ";
    let program = Program::read(program).expect("a program");
    let answer = Session::start(&plain()).expect("an executor").run(&program, 20).expect("an executor");
    let expected = [
        "0 fd=3",
        "1 0",
        "2 0",
        "3 -1 EINTR !1",
        "4 0",
        "5 -1 EINTR !2",
        "6 forked",
        "7 -1 EINTR !2",
        "8 executed",
        "9 -1 EINTR !1",
        "10 exited 7",
        "11 started",
        "12 -1 EINTR !2",
    ];
    assert_eq!(answer, expected);
}
