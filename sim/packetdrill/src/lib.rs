//! The engine as a shared library for the real packetdrill: `packetdrill
//! --so_filename=libsietch_packetdrill.so SCRIPT`.
//!
//! 1. `packetdrill_interface_init` starts a host (`machine`) and fills packetdrill's table of calls
//!    with the functions of this module.
//! 2. Each call copies its input from the caller's pointers, runs on the host, and copies the
//!    answer back. An error is -1 and `errno`.
//! 3. Packets have no link header. `netdev_receive` advances virtual time until the engine sends a
//!    packet.
//! 4. `gettimeofday` advances virtual time by a microsecond, because packetdrill spins on it before
//!    every event.
//!
//! The code follows the description of the interface; the layout of [`Interface`] is packetdrill's.
//! Calls that are not implemented (epoll, pipes, splice) fail with `ENOSYS`.

use std::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_uint, c_ulong, c_void};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{iovec, linger, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval};
use sietch_conformance::host::{Errno, OptionValue, Outcome, PollEntry, Settings};

mod machine;

use machine::Machine;

/// A call that this library does not implement.
type Missing = extern "C" fn() -> c_int;

/// packetdrill's table of calls, in its order.
#[repr(C)]
#[expect(missing_docs, reason = "the calls by their names")]
pub struct Interface {
    pub userdata: *mut c_void,
    pub free: unsafe extern "C" fn(*mut c_void),
    pub socket: unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int) -> c_int,
    pub bind: unsafe extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int,
    pub listen: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    pub accept: unsafe extern "C" fn(*mut c_void, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub connect: unsafe extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int,
    pub read: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, size_t) -> ssize_t,
    pub readv: unsafe extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> ssize_t,
    pub recv: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, size_t, c_int) -> ssize_t,
    pub recvfrom: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *mut c_void,
        size_t,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t,
    pub recvmsg: unsafe extern "C" fn(*mut c_void, c_int, *mut msghdr, c_int) -> ssize_t,
    pub write: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, size_t) -> ssize_t,
    pub writev: unsafe extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> ssize_t,
    pub send: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, size_t, c_int) -> ssize_t,
    pub sendto: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *const c_void,
        size_t,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    pub sendmsg: unsafe extern "C" fn(*mut c_void, c_int, *const msghdr, c_int) -> ssize_t,
    pub fcntl: unsafe extern "C" fn(*mut c_void, c_int, c_int, c_long) -> c_int,
    pub ioctl: unsafe extern "C" fn(*mut c_void, c_int, c_ulong, *mut c_int) -> c_int,
    pub close: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    pub shutdown: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    pub getsockopt:
        unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    pub setsockopt: unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub poll: unsafe extern "C" fn(*mut c_void, *mut pollfd, nfds_t, c_int) -> c_int,
    pub netdev_send: unsafe extern "C" fn(*mut c_void, *const c_void, size_t) -> c_int,
    pub netdev_receive: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    pub usleep: unsafe extern "C" fn(*mut c_void, c_uint) -> c_int,
    pub gettimeofday: unsafe extern "C" fn(*mut c_void, *mut timeval, *mut c_void) -> c_int,
    pub epoll_create: Missing,
    pub epoll_ctl: Missing,
    pub epoll_wait: Missing,
    pub pipe: Missing,
    pub splice: Missing,
}

/// The longest virtual time that `netdev_receive` waits before it reports that no packet comes. It
/// is longer than every timer that sends something.
const LONGEST_WAIT: u64 = 3 * 3600 * 1_000_000_000;

/// Fills packetdrill's table. `flags` are the settings of `sietch_conformance::host::Settings`, or
/// null.
///
/// # Safety
/// `flags` is null or a C string, and `interface` points to room for the table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(flags: *const c_char, interface: *mut Interface) {
    let mut settings = Settings::default();
    if !flags.is_null() {
        // SAFETY: not null, so a C string by the contract.
        let text = unsafe { CStr::from_ptr(flags) }.to_string_lossy();
        if let Err(error) = settings.apply(&text) {
            eprintln!("sietch-packetdrill: {error}");
            std::process::exit(2);
        }
    }
    let userdata = Box::into_raw(Box::new(Machine::start(settings))).cast();
    let table = Interface {
        userdata,
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt,
        setsockopt,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create: missing,
        epoll_ctl: missing,
        epoll_wait: missing,
        pipe: missing,
        splice: missing,
    };
    // SAFETY: the caller provides room for the table. The old contents are not dropped, because
    // this library did not write them.
    unsafe { interface.write(table) };
}

fn machine<'a>(userdata: *mut c_void) -> &'a Machine {
    // SAFETY: packetdrill passes back the pointer that init put into the table, and calls `free`
    // last.
    unsafe { &*userdata.cast::<Machine>() }
}

fn fail(number: c_int) -> c_int {
    // SAFETY: libc's errno is the calling thread's own.
    unsafe { *libc::__errno_location() = number };
    -1
}

fn long(outcome: Outcome) -> ssize_t {
    match outcome {
        Ok(value) => value as ssize_t,
        Err(Errno(number)) => fail(number) as ssize_t,
    }
}

fn int(outcome: Outcome) -> c_int {
    long(outcome) as c_int
}

/// Runs a call that does not block.
fn now(
    userdata: *mut c_void,
    call: impl FnOnce(&mut sietch_conformance::host::Host) -> Outcome + Send + 'static,
) -> Outcome {
    machine(userdata).run(call).unwrap_or(Err(Errno(libc::EIO)))
}

extern "C" fn missing() -> c_int {
    fail(libc::ENOSYS)
}

fn bytes(pointer: *const c_void, length: usize) -> Vec<u8> {
    if pointer.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller of a socket call guarantees `length` readable bytes.
    unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), length) }.to_vec()
}

fn put(pointer: *mut c_void, data: &[u8]) {
    if !pointer.is_null() {
        // SAFETY: `data` is no longer than the caller's buffer, and does not overlap it, because it
        // is memory of this library.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), pointer.cast::<u8>(), data.len()) };
    }
}

fn address_from(pointer: *const sockaddr, length: socklen_t) -> Option<SocketAddr> {
    let raw = bytes(pointer.cast(), length as usize);
    let family = c_int::from(u16::from_ne_bytes([*raw.first()?, *raw.get(1)?]));
    let port = u16::from_be_bytes([*raw.get(2)?, *raw.get(3)?]);
    match family {
        libc::AF_INET => {
            let octets: [u8; 4] = raw.get(4..8)?.try_into().ok()?;
            Some(SocketAddr::new(Ipv4Addr::from(octets).into(), port))
        }
        libc::AF_INET6 => {
            let octets: [u8; 16] = raw.get(8..24)?.try_into().ok()?;
            Some(SocketAddr::new(Ipv6Addr::from(octets).into(), port))
        }
        _ => None,
    }
}

fn put_address(address: SocketAddr, pointer: *mut sockaddr, length: *mut socklen_t) {
    if pointer.is_null() || length.is_null() {
        return;
    }
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u16;
    let mut raw = family.to_ne_bytes().to_vec();
    raw.extend(address.port().to_be_bytes());
    match address {
        SocketAddr::V4(address) => {
            raw.extend(address.ip().octets());
            raw.extend([0; 8]);
        }
        SocketAddr::V6(address) => {
            raw.extend([0; 4]);
            raw.extend(address.ip().octets());
            raw.extend([0; 4]);
        }
    }
    // SAFETY: not null; the caller guarantees the length word and the buffer of that length.
    let room = unsafe { *length } as usize;
    put(pointer.cast(), &raw[..raw.len().min(room)]);
    // SAFETY: as above.
    unsafe { *length = raw.len() as socklen_t };
}

fn vectors(pointer: *const iovec, count: usize) -> Vec<iovec> {
    if pointer.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller guarantees `count` entries.
    unsafe { std::slice::from_raw_parts(pointer, count) }.to_vec()
}

/// Opens a kernel descriptor with the number of the new socket. At the end of a script, packetdrill
/// closes its open descriptors with the kernel's `close`, which needs a descriptor there.
fn occupy(outcome: Outcome) -> c_int {
    if let Ok(fd) = outcome {
        // SAFETY: the path is a constant. The numbers are above all that packetdrill opens, and
        // this function owns the spare descriptor.
        unsafe {
            let spare = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            libc::dup2(spare, fd as c_int);
            libc::close(spare);
        }
    }
    int(outcome)
}

unsafe extern "C" fn free(userdata: *mut c_void) {
    // SAFETY: init made it from a box, and packetdrill calls this function once, as the last call.
    drop(unsafe { Box::from_raw(userdata.cast::<Machine>()) });
}

unsafe extern "C" fn socket(userdata: *mut c_void, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    occupy(now(userdata, move |host| host.socket(domain, kind, protocol)))
}

unsafe extern "C" fn bind(
    userdata: *mut c_void,
    fd: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    let Some(address) = address_from(address, length) else { return fail(libc::EINVAL) };
    int(now(userdata, move |host| host.bind(fd, address)))
}

unsafe extern "C" fn listen(userdata: *mut c_void, fd: c_int, backlog: c_int) -> c_int {
    int(now(userdata, move |host| host.listen(fd, backlog)))
}

unsafe extern "C" fn accept(
    userdata: *mut c_void,
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    let (sender, peer) = std::sync::mpsc::channel();
    let outcome = machine(userdata).wait(fd, move |host| {
        host.accept(fd).map(|(new, remote)| {
            // The receiver lives until this function returns.
            let _ = sender.send(remote);
            i64::from(new)
        })
    });
    if let Ok(remote) = peer.try_recv() {
        put_address(remote, address, length);
    }
    occupy(outcome)
}

unsafe extern "C" fn connect(
    userdata: *mut c_void,
    fd: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    let Some(address) = address_from(address, length) else { return fail(libc::EINVAL) };
    let (outcome, blocks) = machine(userdata)
        .run(move |host| (host.connect(fd, address), host.blocks(fd)))
        .unwrap_or((Err(Errno(libc::EIO)), false));
    if outcome == Err(Errno(libc::EINPROGRESS)) && blocks {
        return int(machine(userdata).wait(fd, move |host| host.connected(fd)));
    }
    int(outcome)
}

fn receive(userdata: *mut c_void, fd: c_int, length: usize, flags: c_int) -> Result<Vec<u8>, Errno> {
    let (sender, data) = std::sync::mpsc::channel();
    machine(userdata).wait(fd, move |host| {
        let mut buffer = vec![0; length];
        let outcome = host.receive_bytes(fd, &mut buffer, flags);
        if let Ok(count) = outcome {
            buffer.truncate(count as usize);
            // The receiver lives until this function returns.
            let _ = sender.send(buffer);
        }
        outcome
    })?;
    Ok(data.try_recv().unwrap_or_default())
}

fn receive_into(userdata: *mut c_void, fd: c_int, parts: &[iovec], flags: c_int) -> ssize_t {
    let length = parts.iter().map(|part| part.iov_len).sum();
    match receive(userdata, fd, length, flags) {
        Err(Errno(number)) => fail(number) as ssize_t,
        Ok(data) => {
            let mut rest = data.as_slice();
            for part in parts {
                let (head, tail) = rest.split_at(rest.len().min(part.iov_len));
                put(part.iov_base, head);
                rest = tail;
            }
            data.len() as ssize_t
        }
    }
}

unsafe extern "C" fn read(userdata: *mut c_void, fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t {
    receive_into(userdata, fd, &[iovec { iov_base: buffer, iov_len: length }], 0)
}

unsafe extern "C" fn readv(userdata: *mut c_void, fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    receive_into(userdata, fd, &vectors(parts, usize::try_from(count).unwrap_or(0)), 0)
}

unsafe extern "C" fn recv(
    userdata: *mut c_void,
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    receive_into(userdata, fd, &[iovec { iov_base: buffer, iov_len: length }], flags)
}

unsafe extern "C" fn recvfrom(
    userdata: *mut c_void,
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    _address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> ssize_t {
    if !address_length.is_null() {
        // SAFETY: not null, and the caller guarantees it. A stream has no sender address to return.
        unsafe { *address_length = 0 };
    }
    receive_into(userdata, fd, &[iovec { iov_base: buffer, iov_len: length }], flags)
}

unsafe extern "C" fn recvmsg(
    userdata: *mut c_void,
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    if message.is_null() {
        return fail(libc::EFAULT) as ssize_t;
    }
    // SAFETY: not null; the caller guarantees the structure.
    let message = unsafe { &mut *message };
    message.msg_flags = 0;
    message.msg_controllen = 0;
    receive_into(userdata, fd, &vectors(message.msg_iov, message.msg_iovlen), flags)
}

fn send_all(userdata: *mut c_void, fd: c_int, data: Vec<u8>) -> ssize_t {
    let mut sent = 0;
    loop {
        let rest = data[sent..].to_vec();
        match machine(userdata).wait(fd, move |host| host.send_bytes(fd, &rest)) {
            Ok(count) => sent += count as usize,
            Err(Errno(number)) if sent == 0 => return fail(number) as ssize_t,
            Err(_) => return sent as ssize_t,
        }
        let blocks = machine(userdata).run(move |host| host.blocks(fd)).unwrap_or(false);
        if sent >= data.len() || !blocks {
            return sent as ssize_t;
        }
    }
}

fn gather(parts: &[iovec]) -> Vec<u8> {
    parts.iter().flat_map(|part| bytes(part.iov_base, part.iov_len)).collect()
}

unsafe extern "C" fn write(userdata: *mut c_void, fd: c_int, data: *const c_void, length: size_t) -> ssize_t {
    send_all(userdata, fd, bytes(data, length))
}

unsafe extern "C" fn writev(userdata: *mut c_void, fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    send_all(userdata, fd, gather(&vectors(parts, usize::try_from(count).unwrap_or(0))))
}

unsafe extern "C" fn send(
    userdata: *mut c_void,
    fd: c_int,
    data: *const c_void,
    length: size_t,
    _flags: c_int,
) -> ssize_t {
    send_all(userdata, fd, bytes(data, length))
}

unsafe extern "C" fn sendto(
    userdata: *mut c_void,
    fd: c_int,
    data: *const c_void,
    length: size_t,
    _flags: c_int,
    _address: *const sockaddr,
    _address_length: socklen_t,
) -> ssize_t {
    send_all(userdata, fd, bytes(data, length))
}

unsafe extern "C" fn sendmsg(
    userdata: *mut c_void,
    fd: c_int,
    message: *const msghdr,
    _flags: c_int,
) -> ssize_t {
    if message.is_null() {
        return fail(libc::EFAULT) as ssize_t;
    }
    // SAFETY: not null; the caller guarantees the structure.
    let message = unsafe { &*message };
    send_all(userdata, fd, gather(&vectors(message.msg_iov, message.msg_iovlen)))
}

// In C this function is variadic. On packetdrill's targets, a variadic argument of word size is
// passed like a fixed one. If the caller passes none, the register holds an arbitrary value, which
// is not read.
unsafe extern "C" fn fcntl(userdata: *mut c_void, fd: c_int, command: c_int, argument: c_long) -> c_int {
    int(now(userdata, move |host| host.control(fd, command, argument)))
}

unsafe extern "C" fn ioctl(userdata: *mut c_void, fd: c_int, request: c_ulong, answer: *mut c_int) -> c_int {
    match now(userdata, move |host| host.query(fd, request)) {
        Ok(value) => {
            put(answer.cast(), &(value as c_int).to_ne_bytes());
            0
        }
        Err(Errno(number)) => fail(number),
    }
}

unsafe extern "C" fn close(userdata: *mut c_void, fd: c_int) -> c_int {
    let outcome = now(userdata, move |host| host.close(fd));
    if outcome.is_ok() {
        // SAFETY: `occupy` opened this descriptor for this socket.
        unsafe { libc::close(fd) };
    }
    int(outcome)
}

unsafe extern "C" fn shutdown(userdata: *mut c_void, fd: c_int, how: c_int) -> c_int {
    int(now(userdata, move |host| host.shutdown(fd, how)))
}

unsafe extern "C" fn getsockopt(
    userdata: *mut c_void,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let found = match machine(userdata).run(move |host| host.option(fd, level, name)) {
        Some(Ok(found)) => found,
        Some(Err(Errno(number))) => return fail(number),
        None => return fail(libc::EIO),
    };
    let raw = match found {
        OptionValue::Integer(number) => number.to_ne_bytes().to_vec(),
        OptionValue::Linger(on, seconds) => [c_int::from(on).to_ne_bytes(), seconds.to_ne_bytes()].concat(),
        OptionValue::Text(text) => text.into_bytes(),
        OptionValue::Bytes(raw) => raw,
    };
    if length.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: not null; the caller guarantees the length word and the buffer of that length.
    let room = unsafe { *length } as usize;
    let taken = raw.len().min(room);
    put(value, &raw[..taken]);
    // SAFETY: as above.
    unsafe { *length = taken as socklen_t };
    0
}

unsafe extern "C" fn setsockopt(
    userdata: *mut c_void,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let raw = bytes(value, length as usize);
    let word =
        |at: usize| raw.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, c_int::from_ne_bytes);
    let value = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_LINGER) if raw.len() >= size_of::<linger>() => {
            OptionValue::Linger(word(0) != 0, word(4))
        }
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
            OptionValue::Text(String::from_utf8_lossy(&raw).trim_end_matches('\0').to_owned())
        }
        _ if raw.len() < 4 => return fail(libc::EINVAL),
        _ => OptionValue::Integer(word(0)),
    };
    int(now(userdata, move |host| host.set_option(fd, level, name, &value)))
}

unsafe extern "C" fn poll(userdata: *mut c_void, list: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    if list.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: not null; the caller guarantees `count` entries, and does not use them during the
    // call.
    let list = unsafe { std::slice::from_raw_parts_mut(list, count as usize) };
    let requested: Vec<PollEntry> =
        list.iter().map(|one| PollEntry { fd: one.fd, events: one.events, revents: 0 }).collect();
    let began = machine(userdata).run(|host| host.now()).unwrap_or(0);
    let end = u64::try_from(timeout).map_or(u64::MAX, |time| began + time * 1_000_000);
    loop {
        let mut entries = requested.clone();
        let answer = machine(userdata).run(move |host| {
            let ready = host.poll(&mut entries);
            (ready, host.now(), entries)
        });
        let Some((ready, time, entries)) = answer else { return fail(libc::EIO) };
        if ready > 0 || time >= end {
            for (one, entry) in list.iter_mut().zip(&entries) {
                one.revents = entry.revents;
            }
            return ready as c_int;
        }
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

unsafe extern "C" fn netdev_send(userdata: *mut c_void, packet: *const c_void, length: size_t) -> c_int {
    let packet = bytes(packet, length);
    if machine(userdata).run(move |host| host.receive(&packet)) == Some(true) { 0 } else { fail(libc::EIO) }
}

unsafe extern "C" fn netdev_receive(
    userdata: *mut c_void,
    buffer: *mut c_void,
    length: *mut size_t,
    time: *mut c_longlong,
) -> c_int {
    if length.is_null() {
        return fail(libc::EFAULT);
    }
    let found = machine(userdata).run(|host| {
        host.advance_until_sent(host.now() + LONGEST_WAIT);
        host.take_sent()
    });
    // SAFETY: not null; the caller guarantees it and the buffer of that length.
    let room = unsafe { *length };
    let sent = found.flatten();
    let packet = sent.as_ref().map_or(&[][..], |sent| &sent.bytes[..sent.bytes.len().min(room)]);
    put(buffer, packet);
    // SAFETY: as above.
    unsafe { *length = packet.len() };
    if let Some(sent) = sent {
        let microseconds = c_longlong::try_from(sent.at / 1000).unwrap_or(c_longlong::MAX);
        put(time.cast(), &microseconds.to_ne_bytes());
    }
    0
}

unsafe extern "C" fn usleep(userdata: *mut c_void, microseconds: c_uint) -> c_int {
    let time = u64::from(microseconds) * 1000;
    int(now(userdata, move |host| {
        host.advance_to(host.now() + time);
        Ok(0)
    }))
}

unsafe extern "C" fn gettimeofday(userdata: *mut c_void, out: *mut timeval, _zone: *mut c_void) -> c_int {
    let time = machine(userdata).run(|host| {
        let time = host.now();
        host.advance_to(time + 1000);
        time
    });
    let Some(time) = time else { return fail(libc::EIO) };
    let value = timeval {
        tv_sec: (time / 1_000_000_000).cast_signed(),
        tv_usec: (time % 1_000_000_000 / 1000).cast_signed(),
    };
    if !out.is_null() {
        // SAFETY: not null; the caller guarantees it.
        unsafe { out.write(value) };
    }
    0
}
