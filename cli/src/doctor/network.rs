//! AF_XDP, veth and BPF, tried in a network namespace of their own so that nothing of the machine
//! is touched.
//!
//! 1. [`checks`] runs the trials on a thread that enters a new namespace first
//!    ([`in_own_namespace`]). The namespace and everything in it end with the thread.
//! 2. [`vnic`] makes a whole grant with the daemon's own code: devices, programs, maps, a bound
//!    queue. It then releases the grant.
//! 3. The BPF compiler and the store's port are checked in the caller's namespace.
//!
//! No check changes anything in the caller's namespace.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, socket};

use sietch::nic::af_xdp::{Granted, Queue};
use sietch::socket_layout;
use sietch_daemon::device::{KernelDevices, OpenedVnic, VnicDevices as _, VnicPlan};
use sietch_protocol::{Mac, Network};

use super::check::{Check, Verdict};
use super::machine::read;
use crate::arguments::DEFAULT_PORT;

/// `AF_XDP` of linux/socket.h.
const AF_XDP: u16 = 44;

/// The fix where the daemon lacks the privileges for the network.
const AS_ROOT: &str = "run as root, or use `--net linux`";

/// The checks of the network.
pub(super) fn checks() -> Vec<Check> {
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
    // The safe form: a network namespace, unlike shared file descriptors, invalidates nothing in
    // this process.
    #[expect(deprecated, reason = "the replacement is unsafe for flags that are not used here")]
    let own = rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET);
    match own {
        Ok(()) => vec![socket_family(), veth(), vnic()],
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

/// The address of the VNIC that is tried; it exists in the probe's namespace alone.
const TRIED: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(192, 0, 2, 2), Ipv4Addr::new(192, 0, 2, 1));

/// Tries what the daemon and a holder do for a grant, by the daemon's own code.
fn vnic() -> Check {
    let name = "VNIC";
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(cause) => {
            let fix = "raise the limits of threads and open files";
            return Check::not(Verdict::Missing, name, format!("not tried ({cause})"), fix);
        }
    };
    match runtime.block_on(grant()) {
        Ok(()) => Check::ok(name, "a grant was made, mapped, bound and released"),
        Err(cause) => Check::not(Verdict::Missing, name, format!("a grant fails: {cause}"), AS_ROOT),
    }
}

/// Makes a VNIC in the calling thread's namespace, opens it as a holder would, binds it, and takes
/// it down.
async fn grant() -> Result<(), String> {
    let mut devices = KernelDevices::new("doctor", false, None);
    let plan = plan();
    let opened = devices.open(&plan).await.map_err(|error| error.to_string())?;
    let outcome = hold(&mut devices, &plan, opened).await;
    let closed = devices.close(&plan).await.map_err(|error| error.to_string());
    outcome.and(closed)
}

async fn hold(devices: &mut KernelDevices, plan: &VnicPlan, opened: OpenedVnic) -> Result<(), String> {
    let layout = socket_layout(opened.layout);
    let granted = Granted { socket: opened.xsk, umem: opened.umem, layout };
    let mtu = usize::try_from(opened.mtu).unwrap_or(usize::MAX);
    let queue = Queue::open(granted, plan.mac.0, mtu).map_err(|error| error.to_string())?;
    devices.bind(plan).await.map_err(|error| error.to_string())?;
    devices.examine(plan).await?;
    if queue.is_alive() { Ok(()) } else { Err("the queue is bound, and no frame passes".to_owned()) }
}

fn plan() -> VnicPlan {
    VnicPlan {
        name: "probe".to_owned(),
        generation: 1,
        host_interface: "sv-probe".to_owned(),
        application_interface: "sv-probe-a".to_owned(),
        mac: Mac([2, 0, 0, 0, 0, 2]),
        host_mac: Mac([2, 0, 0, 0, 0, 1]),
        address: Network { address: TRIED.0, prefix: 24 },
        host_address: TRIED.1,
        ipv6: None,
        mtu: 1500,
        tcp_ports: Vec::new(),
        udp_ports: Vec::new(),
        peers: Vec::new(),
        peers6: Vec::new(),
        rate: None,
        socket: 0,
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
    // An acknowledgement is an NLMSG_ERROR whose code, after the header of 16 bytes, is 0 or a
    // negative errno.
    match reply.get(16..20).filter(|_| length >= 20) {
        Some(&[a, b, c, d]) => match i32::from_ne_bytes([a, b, c, d]) {
            0 => Ok(()),
            code => Err(Errno::from_raw_os_error(-code)),
        },
        _ => Err(Errno::PROTO),
    }
}

/// An RTM_NEWLINK request: header, ifinfomsg, IFLA_IFNAME, IFLA_LINKINFO { IFLA_INFO_KIND }
/// (rtnetlink(7)).
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
