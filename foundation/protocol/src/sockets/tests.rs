use super::*;

fn report(port: u16) -> SocketReport {
    SocketReport {
        transport: Transport::Tcp,
        state: SocketState::Established,
        local: SocketAddr::from(([10, 0, 0, 1], port)),
        peer: Some("[fd00::2]:80".parse().expect("an address")),
        receive_queue: 1,
        send_queue: 2,
        tcp: Some(Box::new(TcpReport {
            algorithm: "cubic".to_owned(),
            srtt: 12_345,
            window_scale: (7, 8),
            slow_start_threshold: Some(14_480),
            ..TcpReport::default()
        })),
    }
}

fn raw(text: &[u8], seals: SealFlags) -> OwnedFd {
    let file =
        rustix::fs::memfd_create("raw", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
    write_all(&file, text).expect("write");
    rustix::fs::fcntl_add_seals(&file, seals).expect("seal");
    file
}

#[test]
fn a_written_report_is_read_and_cannot_be_changed() {
    let reports: Vec<SocketReport> = (1..5000).map(report).collect();
    let (file, omitted) = write(&reports).expect("write");
    assert_eq!(omitted, 0);
    assert_eq!(read(&file).expect("read"), reports);
    assert!(rustix::io::pwrite(&file, b"x", 0).is_err());
    assert_eq!(read(&write(&[]).expect("write").0).expect("read"), []);
}

#[test]
fn too_many_sockets_are_counted_and_left_out() {
    let reports = vec![SocketReport { tcp: None, ..report(7) }; MAX_REPORTS + 3];
    let (file, omitted) = write(&reports).expect("write");
    assert_eq!(omitted, 3);
    assert_eq!(read(&file).expect("read").len(), MAX_REPORTS);
}

#[test]
fn hostile_answers_are_refused() {
    let (pipe, _writer) = rustix::pipe::pipe().expect("pipe");
    assert!(matches!(read(&pipe), Err(SocketsError::NotSealed)));
    let loose = raw(b"", SealFlags::SHRINK | SealFlags::GROW);
    assert!(matches!(read(&loose), Err(SocketsError::NotSealed)));
    assert!(matches!(read(raw(b"{}\n", SEALS)), Err(SocketsError::Line { line: 1, .. })));
    let mut long = report(1);
    long.tcp = Some(Box::new(TcpReport { algorithm: "x".repeat(100), ..TcpReport::default() }));
    let text = serde_json::to_vec(&long).expect("encode");
    assert!(matches!(read(raw(&text, SEALS)), Err(SocketsError::Word { line: 1 })));
    let flood = "\n".repeat(100) + &"{\"transport\":\"udp\"".repeat(10);
    assert!(read(raw(flood.as_bytes(), SEALS)).is_err());
}
