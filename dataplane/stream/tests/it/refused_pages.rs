//! The kernel refuses a page while bytes are read where they are.

use std::io::ErrorKind::ConnectionReset;
use std::os::fd::AsFd as _;
use std::ptr;

use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use sietch_ring::stream::Endpoint;
use sietch_stream::Listener;

use crate::played_service::{PlayedService, arrive};

const PAGE: usize = 4096;

/// Where this process has mapped a file.
fn mapped(file: impl std::os::fd::AsFd) -> std::ops::Range<usize> {
    let inode = fstat(file).unwrap().st_ino.to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.split_whitespace().nth(4) == Some(&inode)).unwrap();
    let (from, to) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
    usize::from_str_radix(from, 16).unwrap()..usize::from_str_radix(to, 16).unwrap()
}

#[test]
fn what_was_copied_from_a_refused_page_is_an_error_and_no_bytes() {
    let service = PlayedService::start();
    let listener = Listener::bind(&service.direct(), ([127, 0, 0, 1], 0).into(), 8).unwrap();
    let arriving = service.listeners.recv().unwrap();
    let [_client, common, private] = arrive(arriving.as_fd());
    let connection = listener.try_accept().unwrap();
    let memory = mapped(&common);
    let end = Endpoint::attach(common.as_fd(), private.as_fd()).unwrap();
    assert_eq!(end.send().unwrap().write(&[7; 10_000]), 10_000);
    let shown = connection.try_read_with(|pieces| {
        assert!(pieces[0].to_vec().iter().all(|byte| *byte == 7));
        100
    });
    assert_eq!(shown.unwrap(), Some(100));

    // Behind the header a file without pages: a touch is SIGBUS, as one of a page that is refused.
    let empty = memfd_create("empty", MemfdFlags::CLOEXEC).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    let start = ptr::with_exposed_provenance_mut(memory.start + PAGE);
    // SAFETY: pages of the connection's mapping, which only copies touch whose faults are answered.
    unsafe { mmap(start, memory.len() - PAGE, access, flags, &empty, 0) }.unwrap();
    let mut calls = 0;
    let shown = connection.try_read_with(|pieces| {
        calls += 1;
        pieces[0].to_vec().len()
    });
    assert_eq!((shown.unwrap_err().kind(), calls), (ConnectionReset, 1));
    assert_eq!(connection.try_read_with(|_| panic!("there are bytes")).unwrap(), None);
}
