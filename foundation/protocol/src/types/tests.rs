use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn printed_text_parses_to_the_same_value(
        mac: [u8; 6], address: u32, prefix in 0u8..=32, first in 1u16.., extra: u16, bytes in 1..u64::MAX / 8, size: u64,
    ) {
        let mac = Mac(mac);
        prop_assert_eq!(mac.to_string().parse::<Mac>().unwrap(), mac);
        let network = Network { address: Ipv4Addr::from(address), prefix };
        prop_assert_eq!(network.to_string().parse::<Network>().unwrap(), network);
        let range = PortRange { first, last: first.saturating_add(extra) };
        prop_assert_eq!(range.to_string().parse::<PortRange>().unwrap(), range);
        let rate = Rate { bytes_per_second: bytes };
        prop_assert_eq!(rate.to_string().parse::<Rate>().unwrap(), rate);
        let size = Size { bytes: size };
        prop_assert_eq!(size.to_string().parse::<Size>().unwrap(), size);
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in ".{0,40}") {
        let _ = text.parse::<Mac>();
        let _ = text.parse::<Network>();
        let _ = text.parse::<PortRange>();
        let _ = text.parse::<Rate>();
        let _ = text.parse::<Size>();
    }
}

#[test]
fn units_are_converted_to_bytes() {
    assert_eq!("10Gbit/s".parse::<Rate>().unwrap().bytes_per_second, 1_250_000_000);
    assert_eq!("1 GiB".parse::<Size>().unwrap().bytes, 1 << 30);
    assert_eq!("64 KiB".parse::<Size>().unwrap().bytes, 65_536);
}

#[test]
fn an_invalid_text_is_refused_with_the_right_form() {
    for wrong in ["", "10", "-1bit/s", "1e9bit/s", "99999999999999999999Gbit/s", "7bit/s"] {
        let error = wrong.parse::<Rate>().unwrap_err().to_string();
        assert!(error.contains("Gbit/s"), "{error}");
    }
    for wrong in ["0", "70000", "10-5", "1-", "-1", "+5", ""] {
        assert!(wrong.parse::<PortRange>().is_err(), "{wrong}");
    }
    for wrong in ["10.0.0.0/33", "10.0.0/8", "10.0.0.0/", "10.0.0.0/+8", "::/0"] {
        assert!(wrong.parse::<Network>().is_err(), "{wrong}");
    }
    for wrong in ["fd00::1", "fd00::1/129", "fd00::1/", "10.0.0.1/8", "fd00::1/+64"] {
        assert!(wrong.parse::<Network6>().is_err(), "{wrong}");
    }
    for wrong in ["02:00:00:00:00", "02:00:00:00:00:0g", "2:0:0:0:0:1", "02:00:00:00:00:01:02"] {
        assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
    }
}

#[test]
fn a_network_contains_its_own_addresses_only() {
    let network: Network = "10.83.0.2/24".parse().unwrap();
    assert!(network.contains(Ipv4Addr::new(10, 83, 0, 200)));
    assert!(!network.contains(Ipv4Addr::new(10, 83, 1, 2)));
    assert!(Network::EVERYONE.contains(Ipv4Addr::new(8, 8, 8, 8)));
    let network: Network6 = "fd00:1::2/64".parse().unwrap();
    assert!(network.contains("fd00:1::ffff".parse().unwrap()) && network.to_string() == "fd00:1::2/64");
    assert!(!network.contains("fd00:2::2".parse().unwrap()));
    let everyone: Network6 = "::/0".parse().unwrap();
    assert!(everyone.contains("2001:db8::1".parse().unwrap()));
}
