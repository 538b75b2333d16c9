//! The model keeps the rules that random programs do not reach.

use sietch_fs_oracle::Model;
use sietch_fs_oracle::checks::{self, CHECKS, Check};

use crate::kernel::{Clock, Kernel};
use crate::mounts::Mounted;

#[test]
fn the_model_keeps_all_rules() {
    let mut model = Model::new();
    for (name, check) in CHECKS {
        assert_eq!(check(&mut model), Ok(()), "{name}");
    }
}

/// The rules about limits are those of the model: ext4 has its own.
#[test]
fn ext4_keeps_the_rules_without_limits() {
    const SHARED: [(&str, Check); 3] = [
        ("a listing survives changes", checks::listing_survives_changes),
        ("changes take capabilities away", checks::changes_take_capabilities_away),
        ("a large file is its bytes", checks::large_file_is_its_bytes),
    ];
    match Mounted::new("ext4") {
        Ok(mounted) => {
            let mut kernel = Kernel::new(&mounted.root(), Clock::Fine).expect("it is mounted");
            for (name, check) in SHARED {
                assert_eq!(check(&mut kernel), Ok(()), "{name}");
            }
        }
        Err(reason) => println!("SKIPPED: ext4 cannot be mounted: {reason}"),
    }
}
