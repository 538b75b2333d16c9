//! The model keeps the rules that random programs do not reach.

use sietch_fs_oracle::Model;
use sietch_fs_oracle::checks::{self, CHECKS};

use crate::kernel::{Clock, Kernel};
use crate::mounts::Mounted;

#[test]
fn the_model_keeps_all_rules() {
    let mut model = Model::new();
    for (name, check) in CHECKS {
        assert_eq!(check(&mut model), Ok(()), "{name}");
    }
}

#[test]
fn ext4_takes_capabilities_away_as_the_model_does() {
    match Mounted::new("ext4") {
        Ok(mounted) => {
            let mut kernel = Kernel::new(&mounted.root(), Clock::Fine).expect("it is mounted");
            assert_eq!(checks::changes_take_capabilities_away(&mut kernel), Ok(()));
        }
        Err(reason) => println!("SKIPPED: ext4 cannot be mounted: {reason}"),
    }
}
