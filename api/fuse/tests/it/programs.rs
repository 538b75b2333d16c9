//! Random and exhaustive programs behave on a mounted model as on a model.
//!
//! Unlike a comparison with another file system, this shows the mount alone: both sides have the
//! same rules, and every difference is one of the front end.

// The kernel's directories as a file system, as the oracle compares them with the model.
#[path = "../../../../dataplane/fs/oracle/tests/it/kernel.rs"]
mod kernel;

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use sietch_fs_oracle::Model;
use sietch_fs_oracle::program::compare::{Difference, compare};
use sietch_fs_oracle::program::exhaustive::{sequences, setup};
use sietch_fs_oracle::program::generate::{Mix, generate};
use sietch_fs_oracle::program::minimise::minimise;
use sietch_fs_oracle::program::operation::Operation;

use crate::mounted::Mounted;
use kernel::{Clock, Kernel};

/// Operations of a random program.
const LENGTH: usize = 150;

/// Random programs of each mix.
const PROGRAMS: u64 = 12;

/// Of the short programs, one in so many runs: a request takes longer than a call.
const STEP: usize = 29;

fn run(root: &Path, program: &[Operation]) -> Result<(), Difference> {
    let folder = root.join("program");
    DirBuilder::new().mode(0o755).create(&folder).expect("the model has room");
    let mut mounted = Kernel::new(&folder, Clock::Fine).expect("the folder is there");
    let result = compare(&mut Model::new(), &mut mounted, program);
    drop(mounted);
    fs::remove_dir_all(&folder).expect("root may remove it");
    result
}

fn check(mounted: &Mounted, origin: &str, program: &[Operation]) {
    // FUSE has no O_TMPFILE here.
    let program: Vec<_> = program
        .iter()
        .filter(|operation| !matches!(operation, Operation::CreateUnnamed { .. }))
        .cloned()
        .collect();
    if run(&mounted.directory, &program).is_ok() {
        return;
    }
    let shortest = minimise(&program, &mut |program| run(&mounted.directory, program).is_err());
    let difference = run(&mounted.directory, &shortest).expect_err("it fails");
    panic!("{origin}: first the model, then the mounted one\n{difference}");
}

#[test]
fn random_programs_behave_on_a_mount_as_on_what_is_mounted() {
    let Some(mounted) = Mounted::new("programs") else { return };
    for seed in 1..=PROGRAMS {
        for (index, mix) in [Mix::ALL, Mix::NAMES, Mix::DATA].iter().enumerate() {
            let program = generate(seed, LENGTH, &Mix { has_huge_offsets: false, ..*mix });
            check(&mounted, &format!("seed {seed}, mix {index}"), &program);
        }
    }
}

#[test]
fn all_short_programs_behave_on_a_mount_as_on_what_is_mounted() {
    let Some(mounted) = Mounted::new("sequences") else { return };
    for (index, program) in sequences(2).enumerate().step_by(STEP) {
        check(&mounted, &format!("sequence {index}"), &[setup(), program].concat());
    }
}
