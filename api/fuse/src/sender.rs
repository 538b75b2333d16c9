//! Who sends a request, and what that user may do.
//!
//! 1. The kernel checks permissions before it sends a request, with all that it knows. So the first
//!    try of a request runs with every privilege.
//! 2. While a request waits, another client may give its name to another file, or the file to
//!    another owner. So each further try, and each further step, of one that changes names or
//!    attributes runs with the sender's own rights ([`Rights`]). What they refuse gets ESTALE: the
//!    kernel looks names up again, checks, and sends the request again if it may.
//! 3. FUSE sends neither supplementary groups nor capabilities. They are read from `/proc`: the
//!    sender waits in its system call, so they do not change meanwhile. Capabilities count where
//!    the user namespace is this one. Of a sender in another PID namespace both are unknown, and it
//!    has none: then the kernel is asked again once too often.

use rustix::io::Errno;
use sietch_fs::access::Credentials;

/// Who sends a request: what is left of it when it is answered later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The thread.
    pub(crate) pid: u32,
}

/// `CAP_CHOWN`, `CAP_DAC_OVERRIDE` and `CAP_FOWNER`: capabilities over the files of others.
const OVER_FILES: u64 = 1 | 1 << 1 | 1 << 3;

impl Sender {
    /// As one to whom the kernel has permitted what it asks.
    pub(crate) fn permitted(self) -> Credentials {
        Credentials { uid: self.uid, gid: self.gid, groups: Vec::new(), is_privileged: true }
    }

    /// With all groups and capabilities that can be seen from here.
    pub(crate) fn own(self) -> Credentials {
        if self.uid == 0 {
            return self.permitted();
        }
        let Status { groups, capabilities } = status(self.pid);
        let is_privileged = capabilities & OVER_FILES != 0 && is_in_this_namespace(self.pid);
        Credentials { groups, is_privileged, ..self.permitted() }
    }

    /// The supplementary groups; none if the sender cannot be seen from here.
    pub(crate) fn groups(self) -> Vec<u32> {
        status(self.pid).groups
    }
}

/// The rights with which the tries of a request run, one after the other.
pub(crate) struct Rights {
    sender: Sender,
    own: Option<Credentials>,
    has_begun: bool,
}

impl Rights {
    /// Of a request that begins.
    pub(crate) fn of(sender: Sender) -> Self {
        Self { sender, own: None, has_begun: false }
    }

    /// Runs the next try or step.
    pub(crate) fn run<T>(&mut self, part: impl FnOnce(&Credentials) -> Result<T, Errno>) -> Result<T, Errno> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return part(&self.sender.permitted());
        }
        let own = self.own.get_or_insert_with(|| self.sender.own());
        match part(own) {
            Err(Errno::ACCESS | Errno::PERM) if !own.is_privileged => Err(Errno::STALE),
            other => other,
        }
    }
}

/// What `/proc` shows of a thread.
#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    groups: Vec<u32>,
    /// The effective ones.
    capabilities: u64,
}

fn status(thread: u32) -> Status {
    parse(&std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default())
}

fn is_in_this_namespace(thread: u32) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let own = namespace("self");
    own.is_some() && own == namespace(&thread.to_string())
}

fn parse(status: &str) -> Status {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let groups = field("Groups:").split_whitespace().filter_map(|group| group.parse().ok()).collect();
    let capabilities = u64::from_str_radix(field("CapEff:").trim(), 16).unwrap_or_default();
    Status { groups, capabilities }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_capabilities_are_read_from_the_status_of_a_process() {
        let found =
            parse("Name:\tx\nGid:\t5\t5\nGroups:\t4 24 4294967295 \nNgid:\t0\nCapEff:\t000000000000000a\n");
        assert_eq!(found, Status { groups: vec![4, 24, u32::MAX], capabilities: 10 });
        assert_eq!(parse("Groups:\t \nCapEff:\tx"), Status::default());
        assert_eq!(parse("Groups:\tx -1 3\n").groups, [3]);
        assert_eq!(parse(""), Status::default());
    }

    #[test]
    fn the_first_try_is_permitted_and_later_ones_have_the_senders_rights() {
        let refused = |who: &Credentials| if who.is_privileged { Ok(()) } else { Err(Errno::PERM) };
        let mut user = Rights::of(Sender { uid: 3000, gid: 3000, pid: u32::MAX });
        assert_eq!(user.run(refused), Ok(()));
        assert_eq!(user.run(refused), Err(Errno::STALE));
        assert_eq!(user.run(|_| Err::<(), _>(Errno::EXIST)), Err(Errno::EXIST));
        let mut root = Rights::of(Sender { uid: 0, gid: 0, pid: u32::MAX });
        assert_eq!([root.run(refused), root.run(refused)], [Ok(()); 2]);
    }
}
