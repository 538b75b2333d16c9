//! What the tests need of the machine: a network namespace, veths, an AF_XDP socket, raw frames.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::xdp::netlink;

/// Runs `test` on its own thread in its own network namespace, which goes with the thread. Says so
/// and does nothing without root.
pub(super) fn in_namespace(name: &str, test: impl FnOnce() + Send) {
    // SAFETY: no pointers.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED {name}: needs root (CAP_NET_ADMIN, CAP_BPF) for XDP programs");
        return;
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: no pointers; only this thread changes its namespace.
            let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(result, 0, "unshare: {}", io::Error::last_os_error());
            // Without IPv6 the kernel itself sends nothing over the veths.
            for which in ["all", "default"] {
                let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
                // A kernel without IPv6 has no such file, and nothing to switch off.
                let _ = std::fs::write(path, "1");
            }
            test();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

const RTM_NEWLINK: u16 = 16;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;

fn end(name: &str, mac: [u8; 6]) -> Vec<u8> {
    let mut body = vec![0; 16];
    netlink::attribute(&mut body, IFLA_IFNAME, format!("{name}\0").as_bytes());
    netlink::attribute(&mut body, IFLA_ADDRESS, &mac);
    netlink::attribute(&mut body, IFLA_NUM_TX_QUEUES, &1_u32.to_ne_bytes());
    netlink::attribute(&mut body, IFLA_NUM_RX_QUEUES, &1_u32.to_ne_bytes());
    body
}

pub(super) fn interface(name: &str) -> u32 {
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: `name` ends with a zero and outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    assert_ne!(index, 0, "interface {name:?}");
    index
}

/// Makes a veth, both ends up, of one queue each; the ends' indices.
pub(super) fn veth(first: (&str, [u8; 6]), second: (&str, [u8; 6])) -> (u32, u32) {
    let mut data = Vec::new();
    netlink::attribute(&mut data, VETH_INFO_PEER, &end(second.0, second.1));
    let mut info = Vec::new();
    netlink::attribute(&mut info, IFLA_INFO_KIND, b"veth");
    netlink::attribute(&mut info, IFLA_INFO_DATA, &data);
    let mut body = end(first.0, first.1);
    netlink::attribute(&mut body, IFLA_LINKINFO, &info);
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    netlink::request(RTM_NEWLINK, flags as u16, &body, &|| "make a veth".to_owned()).unwrap();
    let ends = (interface(first.0), interface(second.0));
    for index in [ends.0, ends.1] {
        let up = (libc::IFF_UP as u32).to_ne_bytes();
        let mut body = vec![0; 4];
        body.extend_from_slice(&index.to_ne_bytes());
        body.extend_from_slice(&up);
        body.extend_from_slice(&up);
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        netlink::request(libc::RTM_SETLINK, flags as u16, &body, &|| format!("switch interface {index} on"))
            .unwrap();
    }
    ends
}

/// Deletes an interface; a veth's other end goes with it.
pub(super) fn remove(ifindex: u32) {
    let mut body = vec![0; 4];
    body.extend_from_slice(&ifindex.to_ne_bytes());
    body.extend_from_slice(&[0; 8]);
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
    netlink::request(libc::RTM_DELLINK, flags as u16, &body, &|| format!("delete interface {ifindex}"))
        .unwrap();
}

/// An AF_XDP socket with a UMEM, so that a socket map takes it. It is bound to nothing.
pub(super) struct Socket {
    fd: OwnedFd,
    memory: *mut libc::c_void,
}

const UMEM_BYTES: usize = 64 << 10;

impl Socket {
    pub(super) fn new() -> Self {
        #[repr(C)]
        struct Registration {
            address: u64,
            length: u64,
            chunk: u32,
            headroom: u32,
            flags: u32,
            metadata: u32,
        }
        // SAFETY: an anonymous mapping of our own.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                UMEM_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(fd >= 0, "AF_XDP socket: {}", io::Error::last_os_error());
        let registration = Registration {
            address: memory as u64,
            length: UMEM_BYTES as u64,
            chunk: 4096,
            headroom: 0,
            flags: 0,
            metadata: 0,
        };
        // SAFETY: reads `registration` to its size; the memory that it names stays mapped until
        // drop.
        let result = unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_XDP,
                libc::XDP_UMEM_REG,
                std::ptr::from_ref(&registration).cast(),
                size_of::<Registration>() as libc::socklen_t,
            )
        };
        assert_eq!(result, 0, "UMEM: {}", io::Error::last_os_error());
        // SAFETY: the fd is new and ours.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Self { fd, memory }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, unmapped once.
        unsafe { libc::munmap(self.memory, UMEM_BYTES) };
    }
}

/// Raw frames at one interface, past every filter of the kernel's stack.
pub(super) struct Raw(OwnedFd);

impl Raw {
    pub(super) fn at(ifindex: u32) -> Self {
        let every = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: no pointers.
        let fd =
            unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(every)) };
        assert!(fd >= 0, "raw socket: {}", io::Error::last_os_error());
        // SAFETY: all-zero is a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = every;
        address.sll_ifindex = ifindex as i32;
        // SAFETY: reads `address` to its size.
        let result = unsafe {
            libc::bind(
                fd,
                std::ptr::from_ref(&address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        assert_eq!(result, 0, "bind: {}", io::Error::last_os_error());
        // SAFETY: the fd is new and ours.
        Self(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub(super) fn send(&self, frame: &[u8]) {
        // SAFETY: reads `frame` to its length.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", io::Error::last_os_error());
    }

    /// The frames that arrived, without waiting; those that this namespace itself sent here are
    /// left out.
    pub(super) fn received(&self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let mut buffer = vec![0_u8; 2048];
            // SAFETY: all-zero is a valid sockaddr_ll.
            let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            // SAFETY: writes at most the lengths given.
            let received = unsafe {
                libc::recvfrom(
                    self.0.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    libc::MSG_DONTWAIT,
                    std::ptr::from_mut(&mut from).cast(),
                    &mut length,
                )
            };
            if received < 0 {
                return frames;
            }
            if from.sll_pkttype != libc::PACKET_OUTGOING {
                buffer.truncate(received as usize);
                frames.push(buffer);
            }
        }
    }
}

/// Repeats `ask` until it gives something. Frames cross a veth in softirqs: soon, but not at once.
pub(super) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = std::time::Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed().as_secs() < 10, "never happened: {what}");
        std::thread::yield_now();
    }
}
