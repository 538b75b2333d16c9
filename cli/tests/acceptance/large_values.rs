//! A hundred megabytes through the VNIC, in both directions, with the kernel's own TCP as peer.

use std::time::Duration;

use sietch_structures::XorShift64;

use crate::client::{Client, Reply, encode};
use crate::testbed::{Testbed, in_own_network};

/// Bytes in a value, and how many there are: 100 MB.
const VALUE: usize = 2_500_000;
const VALUES: u64 = 40;

/// Bytes that never repeat within a value and differ between values.
fn value(seed: u64) -> Vec<u8> {
    let mut random = XorShift64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    std::iter::repeat_with(|| random.word()).flat_map(u64::to_le_bytes).take(VALUE).collect()
}

#[test]
fn large_values_come_back_identical_from_the_vnic() {
    in_own_network("large_values_come_back_identical_from_the_vnic", || {
        let testbed = Testbed::new("large");
        testbed.configure(&testbed.configuration().replace("64MiB", "512MiB"));
        let up = testbed.up(&[]);
        let patience = Duration::from_secs(30);
        let mut writer = Client::connect_with(testbed.vnic(), patience).unwrap();
        for number in 0..VALUES {
            writer.send_raw(&encode(&[b"SET", format!("v{number}").as_bytes(), &value(number)])).unwrap();
            assert_eq!(writer.receive().unwrap(), Reply::ok());
        }
        // All are requested at once, so that the engine's send buffer is the limit.
        let mut reader = Client::connect_with(testbed.vnic(), patience).unwrap();
        for number in 0..VALUES {
            reader.send(&[b"GET", format!("v{number}").as_bytes()]).unwrap();
        }
        for number in 0..VALUES {
            let Reply::Bulk(bytes) = reader.receive().unwrap() else { panic!("value {number} is missing") };
            assert!(bytes == value(number), "value {number} differs");
        }
        up.stop();
    });
}
