//! The rules that random programs do not reach: limits, and listings while entries come and go.

use sietch_fs::name::NameKey;
use sietch_fs_oracle::checks::CHECKS;

use crate::setup::Media;

#[test]
fn the_client_keeps_all_rules() {
    for (name, check) in CHECKS {
        let media = Media::new(64 << 20, 16 << 20);
        media.format(NameKey([7; 16]));
        let mut client = media.open().expect("a file system");
        assert_eq!(check(&mut client), Ok(()), "{name}: faults {:?}", client.service().faults());
    }
}
