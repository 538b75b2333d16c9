//! Random and exhaustive programs have the same results in the model as in the kernel.
//!
//! Each has many more runs in `cargo xtask soak fs`: `SIETCH_SIM_SEEDS` seeds at most, for
//! `SIETCH_SIM_SECONDS` at most; `SIETCH_FS_SEED` is the first one.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use sietch_fs::file_system::Allocation;
use sietch_fs::limits::BLOCK;
use sietch_fs_oracle::Model;
use sietch_fs_oracle::program::compare::{Difference, compare};
use sietch_fs_oracle::program::exhaustive::{sequences, setup};
use sietch_fs_oracle::program::generate::{Mix, generate};
use sietch_fs_oracle::program::minimise::minimise;
use sietch_fs_oracle::program::operation::Operation;

use crate::kernel::{Clock, Kernel};
use crate::mounts::Mounted;

/// Operations of a random program.
const LENGTH: usize = 150;

/// Differences after which a test stops.
const MOST_DIFFERENCES: usize = 8;

/// No file system of the kernel has the limits of the model.
fn mixes() -> [Mix; 3] {
    [Mix::ALL, Mix::NAMES, Mix::DATA].map(|mix| Mix { has_huge_offsets: false, ..mix })
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Leaves out what file systems of the kernel may do in several ways, or cannot do.
///
/// - tmpfs cannot zero a range.
/// - Whether room that is reserved, zeroed or punched in part counts as data is up to the file
///   system. So a program either has such operations or looks for data.
fn comparable(kind: &str, program: &[Operation]) -> Vec<Operation> {
    let reserves = program.len().is_multiple_of(2);
    let is_kept = |operation: &&Operation| match operation {
        Operation::Allocate { allocation: Allocation::Punch, range, .. } => {
            reserves || range.end.is_multiple_of(BLOCK as u64)
        }
        Operation::Allocate { allocation: Allocation::Zero | Allocation::ZeroKeepSize, .. } => {
            reserves && kind != "tmpfs"
        }
        Operation::Allocate { .. } => reserves,
        Operation::Seek { .. } => !reserves,
        _ => true,
    };
    program.iter().filter(is_kept).cloned().collect()
}

fn run(kind: &str, root: &Path, program: &[Operation]) -> Result<(), Difference> {
    let folder = root.join("program");
    DirBuilder::new().mode(0o755).create(&folder).expect("the file system of the test has room");
    let clock = if kind == "tmpfs" { Clock::Ticks } else { Clock::Fine };
    let mut kernel = Kernel::new(&folder, clock).expect("the folder is there");
    let result = compare(&mut Model::new(), &mut kernel, program);
    drop(kernel);
    fs::remove_dir_all(&folder).expect("root may remove it");
    result
}

/// A kind of file system, and the differences that programs found.
struct Differential {
    kind: &'static str,
    mounted: Mounted,
    found: Vec<String>,
}

impl Differential {
    /// `None` where the file system cannot be mounted.
    fn new(kind: &'static str) -> Option<Self> {
        let mounted =
            Mounted::new(kind).map_err(|reason| println!("SKIPPED: {kind} cannot be mounted: {reason}"));
        Some(Self { kind, mounted: mounted.ok()?, found: Vec::new() })
    }

    fn check(&mut self, origin: &str, program: &[Operation]) {
        let program = comparable(self.kind, program);
        let root = self.mounted.root();
        if self.found.len() == MOST_DIFFERENCES || run(self.kind, &root, &program).is_ok() {
            return;
        }
        let shortest = minimise(&program, &mut |program| run(self.kind, &root, program).is_err());
        let difference = run(self.kind, &root, &shortest).expect_err("it fails");
        self.found.push(format!("{}, {origin}: first the model, then the kernel\n{difference}", self.kind));
    }

    fn finish(self) {
        assert!(self.found.is_empty(), "{}", self.found.join("\n"));
    }
}

fn random(kind: &'static str, programs: u64) {
    let Some(mut differential) = Differential::new(kind) else { return };
    let first = number("SIETCH_FS_SEED", 1);
    let end = Instant::now() + Duration::from_secs(number("SIETCH_SIM_SECONDS", 60));
    for seed in first..first + number("SIETCH_SIM_SEEDS", programs) {
        if Instant::now() > end {
            println!("{kind}: stopped before seed {seed}: the time is over");
            break;
        }
        for (index, mix) in mixes().iter().enumerate() {
            // Programs of even and of odd length: see comparable().
            let program = generate(seed, LENGTH + seed as usize % 2, mix);
            differential.check(&format!("seed {seed}, mix {index}"), &program);
        }
    }
    differential.finish();
}

#[test]
fn random_programs_behave_as_on_tmpfs() {
    // It waits for a tick of the clock after each operation.
    random("tmpfs", 3);
}

#[test]
fn random_programs_behave_as_on_ext4() {
    random("ext4", 100);
}

#[test]
fn all_short_programs_behave_as_on_ext4() {
    let Some(mut differential) = Differential::new("ext4") else { return };
    for (index, program) in sequences(2).enumerate() {
        differential.check(&format!("sequence {index}"), &[setup(), program].concat());
    }
    differential.finish();
}
