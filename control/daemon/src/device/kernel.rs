//! VNICs of the kernel: a veth pair, an AF_XDP socket bound to one end, XDP programs on both.
//!
//! Frames larger than a page need a kernel that receives them in several buffers (Linux 6.6). Where
//! that fails, for any reason, the VNIC is made again for frames that fit one buffer. Behind an
//! uplink no MTU is larger than the uplink's, and no frame needs several buffers: not every driver
//! sends such frames.

use std::collections::HashMap;
use std::time::Instant;

use rtnetlink::Handle;
use rustix::thread::CapabilitySet;
use sietch_nic::namespace::Namespace;
use sietch_protocol::metrics::Metric;

use super::holder::{self, Search};
use super::queue::{MAX_SINGLE_MTU, Programs, Uplink};
use super::{
    Adoption, DeviceError, OpenedVnic, RingViolation, UplinkBefore, VnicDevices, VnicPlan, queue, veth,
};

/// The real devices.
pub struct KernelDevices {
    /// How the alias of each interface of this daemon begins.
    owner: String,
    /// The connection to the kernel, or why there is none.
    netlink: Result<Handle, String>,
    /// Programs by host interface.
    programs: HashMap<String, Programs>,
    uplink_name: Option<String>,
    uplink: Option<Uplink>,
    uplink_before: Option<UplinkBefore>,
}

impl KernelDevices {
    /// Devices marked as those of daemon `instance`, joined to `uplink` if there is one.
    pub fn new(instance: &str, without_network: bool, uplink: Option<String>) -> Self {
        let netlink = if without_network {
            Err("VNICs are switched off; start the daemon without `--net linux`".to_owned())
        } else {
            missing_capabilities().and_then(|()| connect())
        };
        let owner = format!("sietch/{instance}/");
        Self {
            owner,
            netlink,
            programs: HashMap::new(),
            uplink_name: uplink,
            uplink: None,
            uplink_before: None,
        }
    }

    fn handle(&self, plan: &VnicPlan) -> Result<Handle, DeviceError> {
        self.netlink.clone().map_err(|why| {
            let (cause, fix) = why.split_once("; ").unwrap_or((&why, "see `sietch doctor`"));
            DeviceError { what: format!("VNIC {}", plan.name), cause: cause.into(), fix: fix.into() }
        })
    }

    async fn join_uplink(&mut self, handle: &Handle) -> Result<(), DeviceError> {
        let Some(name) = &self.uplink_name else { return Ok(()) };
        if self.uplink.is_some() {
            return Ok(());
        }
        let Some(index) = veth::index_of(handle, name).await else {
            return Err(DeviceError {
                what: format!("uplink {name}"),
                cause: "there is no such interface".to_owned(),
                fix: "choose one of those `ip link` shows".to_owned(),
            });
        };
        self.uplink = Some(queue::join_uplink(name, index, self.uplink_before.as_ref())?);
        Ok(())
    }

    /// Makes the whole device, or nothing.
    async fn make(&mut self, handle: &Handle, plan: &VnicPlan) -> Result<OpenedVnic, DeviceError> {
        let namespace = Namespace::create().map_err(|error| DeviceError {
            what: format!("VNIC {}", plan.name),
            cause: format!("cannot make a network namespace for its end: {error}"),
            fix: "run the daemon with CAP_SYS_ADMIN (as root), raise user.max_net_namespaces, or use `--net linux`"
                .to_owned(),
        })?;
        let alias = format!("{}{}", self.owner, plan.name);
        let ends = veth::make(handle, plan, &alias, &namespace).await?;
        let opened = self.open_on(handle, plan, ends, &namespace).await;
        if opened.is_err()
            && let Err(error) = self.close(plan).await
        {
            tracing::warn!(%error, "an incomplete VNIC could not be removed");
        }
        opened
    }

    async fn adopt_one(
        &mut self,
        plan: &VnicPlan,
        search: Search,
        until: Instant,
    ) -> Result<(), DeviceError> {
        let handle = self.handle(plan)?;
        self.join_uplink(&handle).await?;
        let Some(ends) = veth::ends(&handle, plan).await else {
            return Err(veth_missing(plan));
        };
        let found = || search.result(until);
        let programs = queue::adopt(plan, ends, found, self.uplink.as_mut())?;
        self.programs.insert(plan.host_interface.clone(), programs);
        Ok(())
    }

    async fn open_on(
        &mut self,
        handle: &Handle,
        plan: &VnicPlan,
        ends: veth::Ends,
        namespace: &Namespace,
    ) -> Result<OpenedVnic, DeviceError> {
        self.join_uplink(handle).await?;
        veth::bring_up(handle, plan, ends, namespace, self.uplink_name.is_none()).await?;
        let (opened, programs) = queue::open(plan, ends, namespace, self.uplink.as_mut())?;
        self.programs.insert(plan.host_interface.clone(), programs);
        Ok(opened)
    }
}

impl VnicDevices for KernelDevices {
    fn support(&self) -> Result<String, String> {
        match &self.netlink {
            Ok(_) => Ok("AF_XDP on veth pairs, filters in XDP programs".to_owned()),
            Err(why) => Err(why.clone()),
        }
    }

    async fn uplink_before(&mut self, remembered: Option<UplinkBefore>) -> Option<UplinkBefore> {
        let (Some(name), Ok(handle)) = (&self.uplink_name, &self.netlink) else { return None };
        if self.uplink_before.is_none() {
            let ifindex = veth::index_of(handle, name).await?;
            self.uplink_before = queue::uplink_before(ifindex, remembered);
        }
        self.uplink_before.clone()
    }

    async fn open(&mut self, plan: &VnicPlan) -> Result<OpenedVnic, DeviceError> {
        let handle = self.handle(plan)?;
        let mut plan = plan.clone();
        if let Some(uplink) = &self.uplink_name {
            let theirs = veth::mtu_of(&handle, uplink).await.unwrap_or(plan.mtu);
            plan.mtu = plan.mtu.min(theirs).min(MAX_SINGLE_MTU);
        }
        match self.make(&handle, &plan).await {
            Err(error) if plan.mtu > MAX_SINGLE_MTU => {
                tracing::info!(vnic = plan.name, %error, mtu = MAX_SINGLE_MTU, "no large frames here");
                plan.mtu = MAX_SINGLE_MTU;
                self.make(&handle, &plan).await
            }
            made => made,
        }
    }

    async fn bind(&mut self, plan: &VnicPlan) -> Result<(), DeviceError> {
        match self.programs.get_mut(&plan.host_interface) {
            Some(programs) => queue::bind(plan, programs),
            None => Err(veth_missing(plan)),
        }
    }

    async fn adopt(&mut self, adoptions: Vec<Adoption>) -> Vec<Result<(), DeviceError>> {
        // All holders are searched at once: a hostile one takes all the time that there is.
        let searches = adoptions.into_iter().map(|Adoption { plan, pid, pidfd }| {
            let search = Search::begin(plan.socket, pid, pidfd);
            (plan, search)
        });
        let until = Instant::now() + holder::LIMIT;
        let mut adopted = Vec::new();
        for (plan, search) in searches.collect::<Vec<_>>() {
            adopted.push(self.adopt_one(&plan, search, until).await);
        }
        adopted
    }

    async fn examine(&self, plan: &VnicPlan) -> Result<(), String> {
        let there = match &self.netlink {
            Ok(handle) => veth::ends(handle, plan).await.is_some(),
            Err(why) => return Err(why.clone()),
        };
        match self.programs.get(&plan.host_interface) {
            Some(programs) if there => queue::problem(programs).map_or(Ok(()), Err),
            _ => Err(veth_missing(plan).cause),
        }
    }

    fn check_rings(&mut self) -> Vec<RingViolation> {
        let violation = |(interface, programs): (&String, &mut Programs)| {
            let what = queue::ring_violation(programs)?;
            Some(RingViolation { host_interface: interface.clone(), what })
        };
        self.programs.iter_mut().filter_map(violation).collect()
    }

    fn repair_rings(&mut self, host_interface: &str) {
        if let Some(programs) = self.programs.get(host_interface) {
            queue::repair_rings(programs);
        }
    }

    async fn close(&mut self, plan: &VnicPlan) -> Result<(), DeviceError> {
        // The first line stops the traffic. The last one removes the pair.
        if let Some(programs) = self.programs.remove(&plan.host_interface) {
            queue::close(plan, programs);
            if let Some(uplink) = &mut self.uplink {
                uplink.forget(plan);
            }
        }
        match self.handle(plan) {
            Ok(handle) => veth::remove(&handle, plan).await,
            Err(_) => Ok(()),
        }
    }

    async fn remove_others(&mut self, keep: &[&VnicPlan]) -> Result<Vec<String>, DeviceError> {
        let Ok(handle) = self.netlink.clone() else { return Ok(Vec::new()) };
        let interfaces: Vec<String> = keep.iter().map(|plan| plan.host_interface.clone()).collect();
        let removed = veth::remove_others(&handle, &self.owner, &interfaces).await?;
        // Also without a VNIC: a program that an earlier daemon left there may know some that have
        // ended since.
        self.join_uplink(&handle).await?;
        if let Some(uplink) = &mut self.uplink {
            uplink.retain(keep)?;
        }
        Ok(removed)
    }

    async fn finish(&mut self) {
        if let Some(uplink) = self.uplink.take() {
            queue::leave_uplink(uplink);
        }
    }

    fn counters(&self, plan: &VnicPlan) -> Vec<Metric> {
        self.programs.get(&plan.host_interface).map(queue::counters).unwrap_or_default()
    }
}

fn veth_missing(plan: &VnicPlan) -> DeviceError {
    DeviceError {
        what: format!("VNIC {}", plan.name),
        cause: format!("its veth pair {} is missing", plan.host_interface),
        fix: "restart its application".to_owned(),
    }
}

fn connect() -> Result<Handle, String> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(|error| {
        format!("cannot open a netlink socket: {error}; allow AF_NETLINK, or use `--net linux`")
    })?;
    tokio::spawn(connection);
    Ok(handle)
}

fn missing_capabilities() -> Result<(), String> {
    let fix = "run as root, or use `--net linux`";
    let have = rustix::thread::capabilities(None)
        .map_err(|error| format!("cannot read this process' capabilities: {error}; {fix}"))?
        .effective;
    // (CAP_SYS_ADMIN makes network namespaces, and stands for CAP_BPF.)
    let wanted = [
        ("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN),
        ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
        ("CAP_NET_RAW", CapabilitySet::NET_RAW),
    ];
    let missing: Vec<&str> =
        wanted.iter().filter(|(_, bit)| !have.contains(*bit)).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("the daemon lacks {}; {fix}", missing.join(" and ")))
}
