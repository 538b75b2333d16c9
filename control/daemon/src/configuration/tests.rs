use super::*;

fn parse(text: &str) -> Result<Configuration, ConfigurationError> {
    Configuration::parse(text, Path::new("/etc/sietch/sietch.toml"))
}

fn message(text: &str) -> String {
    parse(text).expect_err("it should be refused").to_string()
}

#[test]
fn the_defaults_are_valid_and_serve_kv() {
    let configuration = parse(&default_text(KV_UID)).unwrap();
    assert_eq!(configuration.vnics[0].uid, KV_UID);
    assert_eq!(configuration.vnics[0].rate.unwrap().bytes_per_second, 1_250_000_000);
    assert_eq!(configuration.vsas[0].size, 1 << 30);
    assert_eq!(configuration.kv.durability, "always");
    assert_eq!(configuration.kv.listen, [IpAddr::V4(Ipv4Addr::LOCALHOST)]);
}

#[test]
fn an_empty_file_grants_nothing() {
    let configuration = parse("").unwrap();
    assert!(configuration.vnics.is_empty() && configuration.vsas.is_empty());
}

#[test]
fn every_mistake_is_told_with_its_file_and_line() {
    let vnic = "[[vnic]]\nname = \"a\"\nuid = 1\naddress = \"10.0.0.2/24\"\nhost_address = \"10.0.0.1\"\n";
    let vsa = "[[vsa]]\nname = \"a\"\nuid = 1\nsize = \"1MiB\"\n";
    let cases: [(String, &str, &str); 13] = [
        ("[[vnic]\n".into(), "line 1", ""),
        (format!("{vnic}speed = 1\n"), "line 6", "speed"),
        (format!("{vnic}rate = \"fast\"\n"), "line 6", "Gbit/s"),
        (format!("{vnic}tcp_ports = [\"0\"]\n"), "line 6", "6379"),
        (format!("{vnic}mtu = 9000\n"), ":2:", "3498"),
        (format!("{vnic}mac = \"01:00:00:00:00:01\"\n"), ":2:", "even"),
        (format!("{vnic}{vnic}"), ":7:", "twice"),
        (format!("{vnic}{}", vnic.replace("\"a\"", "\"b\"")), ":7:", "VNIC a's address"),
        (vnic.replace("10.0.0.1\"", "10.1.0.1\""), ":2:", "10.0.0.2/24"),
        (vnic.replace("\"a\"", "\"../etc\""), ":2:", "not a name"),
        (format!("{vnic}{}", vsa.replace("uid = 1", "uid = \"nobody-here\"")), ":8:", "nobody-here"),
        (vsa.replace("1MiB", "1000B"), ":4:", "4096"),
        ("[kv]\ndurability = \"maybe\"\n".into(), ":2:", "always, interval, never"),
    ];
    for (text, line, cause) in cases {
        let message = message(&text);
        assert!(message.starts_with("/etc/sietch/sietch.toml"), "{message}");
        assert!(message.contains(line) && message.contains(cause), "{line} {cause} in:\n{message}");
    }
}

#[test]
fn a_derived_mac_is_stable_unicast_and_different_for_each_name() {
    let mac = derived_mac("machine", "kv", "vnic");
    assert_eq!(mac, derived_mac("machine", "kv", "vnic"));
    assert!(mac.is_unicast() && mac.0[0] & 2 == 2);
    assert_ne!(mac, derived_mac("machine", "kv2", "vnic"));
    assert_ne!(mac, derived_mac("machine", "kv", "host"));
}

#[test]
fn no_text_makes_the_parser_panic() {
    use proptest::prelude::*;
    let text = default_text(1);
    proptest!(|(at in 0..text.len(), noise in ".{0,6}")| {
        let mut broken = text.clone();
        if broken.is_char_boundary(at) {
            broken.insert_str(at, &noise);
        }
        let _ = parse(&broken);
    });
}
