use proptest::prelude::*;

use super::*;

fn sealed(bytes: &[u8]) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("test", flags).unwrap();
    write_all(&file, bytes, 0).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    file
}

#[test]
fn a_reader_sees_published_counters_and_nothing_else() {
    let mut page = Page::create(&[("tcp.segments", Kind::Counter), ("clients", Kind::Gauge)]).unwrap();
    page.set(0, 7);
    page.set(1, u64::MAX);
    page.set(2, 1);
    assert_eq!(read(&page).unwrap()[0].value, 0);
    page.publish().unwrap();
    let metrics = read(&page).unwrap();
    assert_eq!(metrics[0], Metric { name: "tcp.segments".into(), kind: Kind::Counter, value: 7 });
    assert_eq!(metrics[1], Metric { name: "clients".into(), kind: Kind::Gauge, value: u64::MAX });
    assert_eq!(metrics.len(), page.len());
}

#[test]
fn a_full_page_fits_a_frame() {
    let names: Vec<String> = (0..MAX_ENTRIES).map(|index| format!("{index:048}")).collect();
    let entries: Vec<_> = names.iter().map(|name| (name.as_str(), Kind::Counter)).collect();
    let mut page = Page::create(&entries).unwrap();
    (0..MAX_ENTRIES).for_each(|index| page.set(index, u64::MAX));
    page.publish().unwrap();
    let group =
        crate::StatGroup { source: "x".repeat(64), pid: Some(u32::MAX), metrics: read(&page).unwrap() };
    let body = crate::Reply::Stat(Box::new(crate::Stat { group: Some(group), next: Some(u32::MAX) }));
    crate::frame::encode(&crate::ServerFrame::Reply { id: u64::MAX, body }).unwrap();
}

#[test]
fn names_that_could_harm_a_terminal_are_refused_on_both_sides() {
    for name in ["", "a b", "\x1b[2J", "A", &"x".repeat(49)] {
        assert!(matches!(Page::create(&[(name, Kind::Gauge)]), Err(MetricsError::Name(_))), "{name:?}");
    }
    let mut page = Page::create(&[("fine", Kind::Counter)]).unwrap();
    page.bytes[HEADER] = 0x1b;
    page.publish().unwrap();
    assert!(matches!(read(&page), Err(MetricsError::Malformed(_))));
}

#[test]
fn a_page_that_could_make_the_daemon_wait_or_fault_is_refused() {
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    assert!(matches!(read(&pipe), Err(MetricsError::NotSealed)));
    let loose = rustix::fs::memfd_create("loose", MemfdFlags::CLOEXEC).unwrap();
    assert!(matches!(read(&loose), Err(MetricsError::NotSealed)));
    let file = std::fs::File::open("/proc/self/stat").unwrap();
    assert!(matches!(read(&file), Err(MetricsError::NotSealed)));
}

#[test]
fn a_page_in_constant_change_costs_a_bounded_time() {
    let mut page = Page::create(&[("a", Kind::Counter)]).unwrap();
    page.bytes[16] = 1;
    write_all(&page.file, &page.bytes, 0).unwrap();
    assert!(matches!(read(&page), Err(MetricsError::Unstable)));
}

proptest! {
    #[test]
    fn no_page_makes_the_reader_panic(
        noise in prop::collection::vec(any::<u8>(), 0..400), count in 0u32..8, plausible: bool,
    ) {
        let mut bytes = noise;
        if plausible && bytes.len() >= 24 {
            bytes[..8].copy_from_slice(&MAGIC);
            bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
            bytes[12..16].copy_from_slice(&count.to_le_bytes());
            bytes[16] &= 0xfe;
        }
        if let Ok(metrics) = read(sealed(&bytes)) {
            prop_assert_eq!(metrics.len(), count as usize);
        }
    }
}
