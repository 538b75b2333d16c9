use super::*;

#[test]
fn the_definition_is_consistent() {
    use clap::CommandFactory;
    Arguments::command().debug_assert();
}

#[test]
fn sizes_follow_the_units_of_redis() {
    let size = |text: &str| text.parse::<Bytes>().map(|bytes| bytes.0);
    assert_eq!(size("0"), Ok(0));
    assert_eq!(size("100"), Ok(100));
    assert_eq!(size("1k"), Ok(1000));
    assert_eq!(size("512MB"), Ok(512 << 20));
    assert_eq!(size("2gb"), Ok(2 << 30));
    assert_eq!(size("2t"), Ok(2_000_000_000_000));
    for terabytes in ["16tb", "16tib", "16TiB"] {
        assert_eq!(size(terabytes), Ok(16 << 40));
    }
    for wrong in ["", "mb", "tb", "12q", "1pb", "-1", "99999999999gb", "16777216tb", "1.5tb"] {
        assert!(size(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn listen_takes_none_an_address_or_an_address_with_a_port() {
    let resolve = |text: &str| text.parse::<Listen>().map(|listen| listen.resolve(6379));
    assert_eq!(resolve("none"), Ok(None));
    assert_eq!(resolve("127.0.0.1"), Ok("127.0.0.1:6379".parse().ok()));
    assert_eq!(resolve("[::1]:7000"), Ok("[::1]:7000".parse().ok()));
    assert!(resolve("nowhere").is_err());
    // What is printed for a child process is read back as the same.
    for text in ["none", "127.0.0.1", "[::1]:7000", "10.0.0.1:1"] {
        let listen: Listen = text.parse().expect("valid");
        assert_eq!(listen.to_string().parse::<Listen>(), Ok(listen));
    }
}

#[test]
fn root_is_no_account_to_give_privileges_up_for() {
    assert_eq!("7:8".parse::<Account>(), Ok(Account { uid: 7, gid: 8 }));
    for wrong in ["0:8", "7:0", "4294967295:7", "7", "a:b", "-1:7"] {
        assert!(wrong.parse::<Account>().is_err(), "{wrong}");
    }
}

#[test]
fn watch_without_a_number_is_every_second() {
    let parse = |words: &[&str]| Arguments::try_parse_from(words).expect("valid").command;
    match parse(&["sietch", "stat", "--watch"]) {
        Command::Stat(stat) => assert_eq!(stat.watch, Some(1)),
        other => panic!("{other:?}"),
    }
}
