//! Random programs reach every outcome that an operation can have.

use std::collections::{BTreeMap, HashSet};

use rustix::io::Errno;
use sietch_fs_oracle::Model;
use sietch_fs_oracle::program::generate::{Mix, generate};
use sietch_fs_oracle::program::run::{Outcome, State, apply};

/// Errors that random programs must meet, by operation.
const ERRORS: [(&str, &[Errno]); 17] = [
    ("Access", &[Errno::ACCESS]),
    ("Allocate", &[Errno::INVAL, Errno::FBIG, Errno::BADF]),
    ("Create", &[Errno::PERM, Errno::ACCESS, Errno::EXIST, Errno::NOENT, Errno::NOTDIR, Errno::NAMETOOLONG]),
    ("CreateUnnamed", &[Errno::ACCESS, Errno::NOENT, Errno::NOTDIR]),
    ("Link", &[Errno::PERM, Errno::ACCESS, Errno::EXIST, Errno::NOENT, Errno::NOTDIR]),
    ("List", &[Errno::NOENT, Errno::NOTDIR]),
    ("Lookup", &[Errno::ACCESS, Errno::NOENT, Errno::NOTDIR, Errno::NAMETOOLONG]),
    ("Open", &[Errno::ACCESS, Errno::ISDIR, Errno::LOOP, Errno::NXIO]),
    ("Read", &[Errno::BADF, Errno::ISDIR]),
    ("ReadLink", &[Errno::INVAL]),
    ("RemoveDirectory", &[Errno::PERM, Errno::ACCESS, Errno::NOENT, Errno::NOTDIR, Errno::NOTEMPTY]),
    (
        "Rename",
        &[
            Errno::PERM,
            Errno::ACCESS,
            Errno::EXIST,
            Errno::NOENT,
            Errno::NOTDIR,
            Errno::ISDIR,
            Errno::INVAL,
            Errno::NAMETOOLONG,
            Errno::NOTEMPTY,
        ],
    ),
    ("Seek", &[Errno::NXIO]),
    (
        "SetAttributes",
        &[Errno::PERM, Errno::ACCESS, Errno::ISDIR, Errno::INVAL, Errno::FBIG, Errno::OPNOTSUPP],
    ),
    (
        "SetXattr",
        &[
            Errno::PERM,
            Errno::ACCESS,
            Errno::EXIST,
            Errno::INVAL,
            Errno::RANGE,
            Errno::NODATA,
            Errno::OPNOTSUPP,
        ],
    ),
    ("Unlink", &[Errno::PERM, Errno::ACCESS, Errno::NOENT, Errno::NOTDIR, Errno::ISDIR]),
    ("Write", &[Errno::FBIG, Errno::BADF]),
];

#[test]
fn random_programs_reach_all_outcomes() {
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut failed: HashSet<(String, Errno)> = HashSet::new();
    for seed in 0..300 {
        for mix in [Mix::ALL, Mix::NAMES, Mix::DATA] {
            let (mut model, mut state) = (Model::new(), State::new());
            for operation in generate(seed, 150, &mix) {
                let text = format!("{operation:?}");
                let name = text.split(' ').next().unwrap_or_default().to_string();
                let (all, succeeded) = counts.entry(name.clone()).or_default();
                *all += 1;
                match apply(&mut model, &mut state, &operation) {
                    Outcome::Failed(errno) => {
                        failed.insert((name, errno));
                    }
                    Outcome::Skipped => {}
                    _ => *succeeded += 1,
                }
            }
        }
    }
    for (name, (all, succeeded)) in counts {
        assert!(succeeded >= 50, "{name}: {succeeded} of {all} succeed");
    }
    for (name, errors) in ERRORS {
        for errno in errors {
            assert!(failed.contains(&(name.to_string(), *errno)), "{name} never fails with {errno:?}");
        }
    }
}
