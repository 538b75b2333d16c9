use std::net::{IpAddr, Ipv4Addr};

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

const SIX: &str = "address6 = \"fd00::2/64\"\nhost_address6 = \"fd00::1\"\n";

#[test]
fn peers_are_of_either_family() {
    let vnic = "[[vnic]]\nname = \"a\"\nuid = 1\naddress = \"10.0.0.2/24\"\nhost_address = \"10.0.0.1\"\n";
    let with = |peers: &str| {
        let configuration = parse(&format!("{vnic}{SIX}peers = [{peers}]\n")).unwrap();
        let one = &configuration.vnics[0];
        let of = |list: Vec<String>| list.join(" ");
        (
            of(one.peers.iter().map(ToString::to_string).collect()),
            of(one.peers6.iter().map(ToString::to_string).collect()),
        )
    };
    assert_eq!(with("\"10.0.0.0/8\", \"fd00::/8\""), ("10.0.0.0/8".into(), "fd00::/8".into()));
    assert_eq!(with("\"fd00::7\""), (String::new(), "fd00::7/128".into()));
    let (own, host) = parse(&format!("{vnic}{SIX}")).unwrap().vnics[0].ipv6.unwrap();
    assert_eq!((own.to_string(), host.to_string()), ("fd00::2/64".into(), "fd00::1".into()));
}

#[test]
fn every_mistake_is_reported_with_its_file_and_line() {
    let vnic = "[[vnic]]\nname = \"a\"\nuid = 1\naddress = \"10.0.0.2/24\"\nhost_address = \"10.0.0.1\"\n";
    let vsa = "[[vsa]]\nname = \"a\"\nuid = 1\nsize = \"1MiB\"\n";
    let cases: [(String, &str, &str); 24] = [
        ("[[vnic]\n".into(), "line 1", ""),
        (format!("{vnic}speed = 1\n"), "line 6", "speed"),
        (format!("{vnic}rate = \"fast\"\n"), "line 6", "Gbit/s"),
        (format!("{vnic}tcp_ports = [\"0\"]\n"), "line 6", "6379"),
        (format!("{vnic}mtu = 65536\n"), ":2:", "65535"),
        (format!("{vnic}mtu = 575\n"), ":2:", "576"),
        (format!("{vnic}mac = \"01:00:00:00:00:01\"\n"), ":2:", "even"),
        (format!("{vnic}address6 = \"fd00::2/64\"\n"), ":2:", "alone"),
        (format!("{vnic}host_address6 = \"fd00::1\"\n"), ":2:", "alone"),
        (format!("{vnic}address6 = \"fe80::2/64\"\nhost_address6 = \"fe80::1\"\n"), ":2:", "fe80::2"),
        (format!("{vnic}address6 = \"fd00::2/64\"\nhost_address6 = \"fd00::2\"\n"), ":2:", "two hosts"),
        (format!("{vnic}address6 = \"fd00::2/64\"\nhost_address6 = \"fd01::1\"\n"), ":2:", "fd00::2/64"),
        (
            format!("{vnic}mtu = 1279\naddress6 = \"fd00::2/64\"\nhost_address6 = \"fd00::1\"\n"),
            ":2:",
            "1280",
        ),
        (format!("{vnic}peers = [\"fd00::/129\"]\n"), "line 6", "fd00::"),
        (
            format!("{vnic}{SIX}{}{SIX}", vnic.replace("\"a\"", "\"b\"").replace("0.0.2/24", "0.0.3/24")),
            ":9:",
            "VNIC a's address",
        ),
        (format!("{vnic}{vnic}"), ":7:", "twice"),
        (format!("{vnic}{}", vnic.replace("\"a\"", "\"b\"")), ":7:", "VNIC a's address"),
        (vnic.replace("10.0.0.1\"", "10.1.0.1\""), ":2:", "10.0.0.2/24"),
        (vnic.replace("\"a\"", "\"../etc\""), ":2:", "not a name"),
        (format!("{vnic}{}", vsa.replace("uid = 1", "uid = \"no-such-user\"")), ":8:", "no-such-user"),
        (vsa.replace("1MiB", "1000B"), ":4:", "4096"),
        ("[kv]\ndurability = \"maybe\"\n".into(), ":2:", "always, interval, never, none"),
        ("[kv]\nshards = 0\n".into(), ":2:", "write 1 to 64"),
        ("[kv]\nshards = 65\n".into(), ":2:", "write 1 to 64"),
    ];
    for (text, line, cause) in cases {
        let message = message(&text);
        assert!(message.starts_with("/etc/sietch/sietch.toml"), "{message}");
        assert!(message.contains(line) && message.contains(cause), "{line} {cause} in:\n{message}");
    }
}

const LINK: &str = "[[link]]\nname = \"l\"\n[[link.end]]\nname = \"a\"\nuid = 1\naddress = \"10.9.0.1/24\"\naddress6 = \"fd00::1/64\"\n\
                    [[link.end]]\nname = \"b\"\nuid = 2\naddress = \"10.9.0.2/24\"\naddress6 = \"fd00::2/64\"\n";

#[test]
fn a_link_has_two_ends_that_are_found_by_their_names() {
    let configuration = parse(LINK).unwrap();
    let (link, side) = configuration.link_end("b").unwrap();
    assert_eq!((link.name.as_str(), side, link.mtu), ("l", 1, links::USUAL_LINK_MTU));
    assert_eq!(link.ends[side].uid, 2);
    assert_ne!(link.ends[0].mac, link.ends[1].mac);
    assert!(configuration.link_end("l").is_none());
    let big = LINK.replace("\"l\"\n", "\"l\"\nmtu = 65535\nmemory = \"64MiB\"\n");
    let configuration = parse(&big).unwrap();
    let link = &configuration.links[0];
    assert_eq!((link.mtu, link.data, link.slots), (65_535, 64 << 20, 32_768));
}

#[test]
fn a_link_that_leads_nowhere_is_refused_with_its_line() {
    let vnic = "[[vnic]]\nname = \"a\"\nuid = 1\naddress = \"10.0.0.2/24\"\nhost_address = \"10.0.0.1\"\n";
    let half = &LINK[..LINK.rfind("[[link.end]]").unwrap()];
    let cases: [(String, &str, &str); 13] = [
        (half.to_owned(), ":2:", "it has 1 ends"),
        (format!("{LINK}{}", &LINK[LINK.rfind("[[link.end]]").unwrap()..]), ":2:", "it has 3 ends"),
        (format!("{vnic}{LINK}"), ":9:", "twice"),
        (LINK.replace("\"b\"", "\"a\""), ":9:", "twice"),
        (format!("{LINK}{LINK}"), ":14:", "twice"),
        (LINK.replace("10.9.0.2", "10.9.0.1"), ":11:", "two addresses of one network"),
        (LINK.replace("10.9.0.2", "10.8.0.2"), ":11:", "two addresses of one network"),
        (LINK.replace("fd00::2", "fd01::2"), ":11:", "two addresses of one network"),
        (LINK.replace("10.9.0.2", "224.0.0.1"), ":11:", "unicast"),
        (LINK.replace("\"l\"\n", "\"l\"\nmtu = 1000\n"), ":3:", "1280"),
        (LINK.replace("\"l\"\n", "\"l\"\nmemory = \"3MiB\"\n"), ":3:", "power of two"),
        (LINK.replace("\"l\"\n", "\"l\"\nmemory = \"512MiB\"\n"), ":3:", "too much"),
        (LINK.replace("\"l\"\n", "\"l\"\nmtu = 65535\nmemory = \"64KiB\"\n"), ":4:", "MTU"),
    ];
    for (text, line, cause) in cases {
        let message = message(&text);
        assert!(message.contains(line) && message.contains(cause), "{line} {cause} in:\n{message}");
    }
    let wrong = message(&LINK.replace("uid = 2", "uid = 2\nrate = \"1Gbit/s\""));
    assert!(wrong.contains("line 11") && wrong.contains("rate"), "{wrong}");
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

#[test]
fn socket_rules_are_read_in_order_and_a_wrong_one_is_named_with_its_line() {
    let text = "[sockets]\nrules = [\n  \"allow listen user root port 80\",\n  \"deny all\",\n]\n";
    let rules: Vec<String> =
        parse(text).expect("it is right").socket_rules.iter().map(ToString::to_string).collect();
    assert_eq!(rules, ["allow listen user 0 port 80", "deny all"]);
    let wrong = message(&text.replace("deny all", "deny all user no-such-user"));
    assert!(wrong.contains("toml:4:") && wrong.contains("no user here"), "{wrong}");
    assert!(parse("").expect("nothing is said").socket_rules.is_empty());
}

#[test]
fn a_file_system_is_shown_once_and_by_absolute_paths() {
    let table = |name: &str, folder: &str, directory: &str| {
        format!("[[fs]]\nname = \"{name}\"\nfolder = \"{folder}\"\ndirectory = \"{directory}\"\n")
    };
    let mail = table("mail", "/srv/mail", "/mnt/mail");
    let configuration = parse(&(mail.clone() + "allow_other = true\n")).unwrap();
    let found = &configuration.file_systems[0];
    assert_eq!((found.name.as_str(), found.folder.as_path()), ("mail", Path::new("/srv/mail")));
    assert!(found.allow_other && !found.trusted);
    for (other, cause) in [
        (table("web", "srv", "/mnt/web"), "line 8: file system web: folder is no absolute path"),
        (table("web", "/srv/web", "mnt"), "line 9: file system web: directory is no absolute path"),
        (table("web", "/srv/mail", "/mnt/web"), "line 8: file system web: its folder is there twice"),
        (table("web", "/srv/web", "/mnt/mail"), "line 9: file system web: its directory is there twice"),
        (table("mail", "/srv/web", "/mnt/web"), "line 7: file system mail: the name is there twice"),
        (table("a/b", "/srv/web", "/mnt/web"), "not a name"),
        ("[[fs]]\nname = \"web\"\n".to_owned(), "folder"),
    ] {
        let message = message(&(mail.clone() + "\n" + &other));
        let expected = cause.strip_prefix("line ").unwrap_or(cause);
        assert!(message.contains(expected), "{message} does not have {expected}");
    }
}
