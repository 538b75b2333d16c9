//! The AF_XDP socket and the XDP programs of one VNIC, in the terms of `sietch-nic`.

use sietch_protocol::metrics::Metric;

use super::{DeviceError, OpenedVnic, VnicPlan};

/// The programs on both ends of a pair.
pub(super) struct Programs;

/// The program on a physical interface.
pub(super) struct Uplink;

fn missing(plan: &str) -> DeviceError {
    DeviceError {
        what: format!("VNIC {plan}"),
        cause: "this build has no AF_XDP".to_owned(),
        mend: "use `--net linux`".to_owned(),
    }
}

pub(super) fn join_uplink(name: &str, _index: u32) -> Result<Uplink, DeviceError> {
    Err(missing(name))
}

pub(super) fn leave_uplink(_uplink: Uplink) {}

pub(super) fn open(
    plan: &VnicPlan,
    _host: u32,
    _application: u32,
    _uplink: Option<&mut Uplink>,
) -> Result<(OpenedVnic, Programs), DeviceError> {
    Err(missing(&plan.name))
}

pub(super) fn adopt(plan: &VnicPlan, _host: u32, _application: u32) -> Result<Programs, DeviceError> {
    Err(missing(&plan.name))
}

pub(super) fn close(_plan: &VnicPlan, _programs: Programs, _uplink: Option<&mut Uplink>) {}

pub(super) fn counters(_programs: &Programs) -> Vec<Metric> {
    Vec::new()
}
