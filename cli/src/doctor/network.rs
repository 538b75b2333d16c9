//! AF_XDP, veth and BPF, tried in a network namespace of their own so that nothing of the machine is touched.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, socket};

use super::machine::read;
use super::{Check, Verdict};
use crate::arguments::DEFAULT_PORT;

/// `AF_XDP` of linux/socket.h.
const AF_XDP: u16 = 44;

/// What to do where the daemon lacks the privileges for the network.
const AS_ROOT: &str = "run as root, or use `--net linux`";

/// The checks of the network.
pub fn checks() -> Vec<Check> {
    // The namespace lasts as long as the thread that made it; all that is tried in it goes with it.
    let tried = std::thread::spawn(in_own_namespace).join();
    let mut checks = tried.unwrap_or_else(|_| {
        vec![Check::not(Verdict::Missing, "network namespace", "the probe failed", AS_ROOT)]
    });
    checks.push(jit());
    checks.push(port());
    checks
}

fn in_own_namespace() -> Vec<Check> {
    let name = "network namespace";
    // The safe form: a network namespace, unlike shared file descriptors, invalidates nothing in this process.
    #[expect(deprecated, reason = "the replacement is unsafe for flags that are not used here")]
    let own = rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET);
    match own {
        Ok(()) => vec![socket_family(), veth()],
        Err(cause) => {
            vec![Check::not(Verdict::Missing, name, format!("refused ({cause})"), AS_ROOT), socket_family()]
        }
    }
}

fn socket_family() -> Check {
    let name = "AF_XDP";
    match socket(AddressFamily::from_raw(AF_XDP), SocketType::RAW, None) {
        Ok(_) => Check::ok(name, "works"),
        Err(Errno::AFNOSUPPORT) => Check::not(
            Verdict::Missing,
            name,
            "the kernel was built without it",
            "use a kernel with CONFIG_XDP_SOCKETS=y, or `--net linux`",
        ),
        Err(cause) => Check::not(Verdict::Missing, name, format!("no socket ({cause})"), AS_ROOT),
    }
}

fn veth() -> Check {
    let name = "veth";
    match make_veth() {
        Ok(()) => Check::ok(name, "works"),
        Err(Errno::OPNOTSUPP) => Check::not(
            Verdict::Missing,
            name,
            "the kernel has no veth",
            "load it (`modprobe veth`) or use a kernel with CONFIG_VETH, or `--net linux`",
        ),
        Err(cause) => Check::not(Verdict::Missing, name, format!("cannot make a pair ({cause})"), AS_ROOT),
    }
}

/// Makes a veth pair in the caller's namespace.
fn make_veth() -> Result<(), Errno> {
    // No protocol is number 0, NETLINK_ROUTE.
    let channel = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    send(&channel, &new_link(b"sietch-probe\0", b"veth"), SendFlags::empty())?;
    let mut reply = [0_u8; 512];
    let (length, _) = recv(&channel, &mut reply, RecvFlags::empty())?;
    // An acknowledgement is an NLMSG_ERROR whose code, after the header of 16 bytes, is 0 or a negative errno.
    match reply.get(16..20).filter(|_| length >= 20) {
        Some(&[a, b, c, d]) => match i32::from_ne_bytes([a, b, c, d]) {
            0 => Ok(()),
            code => Err(Errno::from_raw_os_error(-code)),
        },
        _ => Err(Errno::PROTO),
    }
}

/// An RTM_NEWLINK request: header, ifinfomsg, IFLA_IFNAME, IFLA_LINKINFO { IFLA_INFO_KIND } (rtnetlink(7)).
fn new_link(name: &[u8], kind: &[u8]) -> Vec<u8> {
    const RTM_NEWLINK: u16 = 16;
    const REQUEST_ACK_EXCL_CREATE: u16 = 0x1 | 0x4 | 0x200 | 0x400;
    const IFLA_IFNAME: u16 = 3;
    const IFLA_LINKINFO: u16 = 18;
    const IFLA_INFO_KIND: u16 = 1;
    let mut body = vec![0_u8; 16]; // ifinfomsg: any family, any index
    body.extend(attribute(IFLA_IFNAME, name));
    body.extend(attribute(IFLA_LINKINFO, &attribute(IFLA_INFO_KIND, kind)));
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend((16 + u32::try_from(body.len()).unwrap_or(0)).to_ne_bytes());
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend(REQUEST_ACK_EXCL_CREATE.to_ne_bytes());
    message.extend(1_u32.to_ne_bytes()); // sequence
    message.extend(0_u32.to_ne_bytes()); // port: the kernel's choice
    message.extend(body);
    message
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + value.len());
    out.extend((4 + u16::try_from(value.len()).unwrap_or(0)).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

fn jit() -> Check {
    let name = "BPF compiler";
    match read("/proc/sys/net/core/bpf_jit_enable").as_deref() {
        Some("0") => Check::not(
            Verdict::Limited,
            name,
            "off: filters are interpreted",
            "`sysctl net.core.bpf_jit_enable=1`",
        ),
        Some(_) => Check::ok(name, "on"),
        None => Check::ok(name, "unknown: readable by root alone"),
    }
}

fn port() -> Check {
    let name = "port 6379";
    match TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT))) {
        Ok(_) => Check::ok(name, "free on 127.0.0.1"),
        Err(cause) => Check::not(
            Verdict::Limited,
            name,
            format!("cannot be bound on 127.0.0.1 ({cause})"),
            "stop what uses it (perhaps a running Sietch), or choose another with `--port`",
        ),
    }
}
