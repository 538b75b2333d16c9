//! The thread that makes and removes VNICs.
//!
//! 1. The kernel takes tens of milliseconds to make or remove a veth pair. The control task serves
//!    all users, so it waits for none of that: it queues *jobs* here, and gets each result as a
//!    future ([`Devices`]).
//! 2. Each user has a queue. The thread takes one job of a user, then one of the next. So a user
//!    that acquires and releases VNICs in a loop delays another one by one job.
//! 3. The jobs of a VNIC run in the order in which they were queued: all are queued for the user of
//!    its grant, and a VNIC has one grant at a time.
//! 4. A queue is as long as its user's connections and grants permit. A connection waits for the
//!    answer to each request, and a grant ends once.
//! 5. What the daemon itself needs comes before all users' jobs.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sietch_protocol::metrics::Metric;
use tokio::sync::{Notify, oneshot};

use super::{Adoption, DeviceError, OpenedVnic, RingViolation, UplinkBefore, VnicDevices, VnicPlan};

/// A result, and the time that the devices took for it.
pub(crate) struct Timed<T> {
    pub(crate) result: T,
    pub(crate) took: Duration,
}

enum Job {
    UplinkBefore(Option<UplinkBefore>, oneshot::Sender<Option<UplinkBefore>>),
    Open(Box<VnicPlan>, oneshot::Sender<Timed<Result<OpenedVnic, DeviceError>>>),
    Bind(Box<VnicPlan>, oneshot::Sender<Result<(), DeviceError>>),
    Adopt(Vec<Adoption>, oneshot::Sender<Vec<Result<(), DeviceError>>>),
    Examine(Vec<VnicPlan>, oneshot::Sender<Vec<(String, String)>>),
    CheckRings(oneshot::Sender<Vec<RingViolation>>),
    RepairRings(String),
    Close(Box<VnicPlan>, oneshot::Sender<Timed<Result<(), DeviceError>>>),
    RemoveOthers(Vec<VnicPlan>, oneshot::Sender<Result<Vec<String>, DeviceError>>),
    Finish(oneshot::Sender<()>),
    Counters(Box<VnicPlan>, oneshot::Sender<Vec<Metric>>),
}

#[derive(Default)]
struct Jobs {
    /// Of the daemon itself.
    own: VecDeque<Job>,
    /// Of each user, never empty.
    users: BTreeMap<u32, VecDeque<Job>>,
    /// The user that was served last.
    last: u32,
    ended: bool,
}

impl Jobs {
    fn take(&mut self) -> Option<Job> {
        if let Some(job) = self.own.pop_front() {
            return Some(job);
        }
        let behind = (Bound::Excluded(self.last), Bound::Unbounded);
        let next = self.users.range(behind).next().or_else(|| self.users.iter().next());
        self.last = *next?.0;
        let jobs = self.users.get_mut(&self.last)?;
        let job = jobs.pop_front();
        if jobs.is_empty() {
            self.users.remove(&self.last);
        }
        job
    }
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    work: Notify,
}

impl Queue {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job; `None` at the end.
    async fn next(&self) -> Option<Job> {
        loop {
            let work = self.work.notified();
            {
                let mut jobs = self.jobs();
                if let Some(job) = jobs.take() {
                    return Some(job);
                }
                if jobs.ended {
                    return None;
                }
            }
            work.await;
        }
    }
}

/// The devices, used from the control task. They end when this is dropped, after the jobs that are
/// queued.
pub(crate) struct Devices {
    queue: Arc<Queue>,
    support: Result<String, String>,
}

impl Drop for Devices {
    fn drop(&mut self) {
        self.queue.jobs().ended = true;
        self.queue.work.notify_one();
    }
}

impl Devices {
    /// Starts the thread, which makes the devices.
    ///
    /// # Errors
    /// No thread or event loop can be started.
    pub(crate) async fn start<D, F>(make: F) -> io::Result<Self>
    where
        D: VnicDevices,
        F: FnOnce() -> D + Send + 'static,
    {
        let queue = Arc::new(Queue::default());
        let jobs = Arc::clone(&queue);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (made, support) = oneshot::channel();
        let work = move || {
            runtime.block_on(async move {
                let mut devices = make();
                if made.send(devices.support()).is_ok() {
                    while let Some(job) = jobs.next().await {
                        run(&mut devices, job).await;
                    }
                }
            });
        };
        std::thread::Builder::new().name("sietch-devices".to_owned()).spawn(work)?;
        let ended = |_| io::Error::other("it has ended");
        Ok(Self { queue, support: support.await.map_err(ended)? })
    }

    /// See [`VnicDevices::support`].
    pub(crate) fn support(&self) -> Result<String, String> {
        self.support.clone()
    }

    /// See [`VnicDevices::uplink_before`].
    pub(crate) fn uplink_before(
        &self,
        user: Option<u32>,
        remembered: Option<UplinkBefore>,
    ) -> impl Future<Output = Option<UplinkBefore>> + use<> {
        let kept = remembered.clone();
        self.queue(user, |reply| Job::UplinkBefore(remembered, reply), || kept)
    }

    /// See [`VnicDevices::open`].
    pub(crate) fn open(
        &self,
        user: u32,
        plan: &VnicPlan,
    ) -> impl Future<Output = Timed<Result<OpenedVnic, DeviceError>>> + use<> {
        let (plan, lost) = (Box::new(plan.clone()), lost(plan));
        self.queue(Some(user), |reply| Job::Open(plan, reply), || Timed::nothing(Err(lost)))
    }

    /// See [`VnicDevices::bind`].
    pub(crate) fn bind(
        &self,
        user: u32,
        plan: &VnicPlan,
    ) -> impl Future<Output = Result<(), DeviceError>> + use<> {
        let (plan, lost) = (Box::new(plan.clone()), lost(plan));
        self.queue(Some(user), |reply| Job::Bind(plan, reply), || Err(lost))
    }

    /// See [`VnicDevices::adopt`].
    pub(crate) fn adopt(
        &self,
        adoptions: Vec<Adoption>,
    ) -> impl Future<Output = Vec<Result<(), DeviceError>>> + use<> {
        self.queue(None, |reply| Job::Adopt(adoptions, reply), Vec::new)
    }

    /// Examines each of these VNICs ([`VnicDevices::examine`]). Returns the names of those that
    /// pass no frames, and why.
    pub(crate) fn examine(
        &self,
        plans: Vec<VnicPlan>,
    ) -> impl Future<Output = Vec<(String, String)>> + use<> {
        self.queue(None, |reply| Job::Examine(plans, reply), Vec::new)
    }

    /// See [`VnicDevices::check_rings`].
    pub(crate) fn check_rings(&self) -> impl Future<Output = Vec<RingViolation>> + use<> {
        self.queue(None, Job::CheckRings, Vec::new)
    }

    /// See [`VnicDevices::repair_rings`].
    pub(crate) fn repair_rings(&self, host_interface: String) {
        self.enter(None, Job::RepairRings(host_interface));
    }

    /// See [`VnicDevices::close`].
    pub(crate) fn close(
        &self,
        user: u32,
        plan: &VnicPlan,
    ) -> impl Future<Output = Timed<Result<(), DeviceError>>> + use<> {
        let (plan, lost) = (Box::new(plan.clone()), lost(plan));
        self.queue(Some(user), |reply| Job::Close(plan, reply), || Timed::nothing(Err(lost)))
    }

    /// See [`VnicDevices::remove_others`].
    pub(crate) fn remove_others(
        &self,
        keep: Vec<VnicPlan>,
    ) -> impl Future<Output = Result<Vec<String>, DeviceError>> + use<> {
        self.queue(None, |reply| Job::RemoveOthers(keep, reply), || Ok(Vec::new()))
    }

    /// See [`VnicDevices::finish`].
    pub(crate) fn finish(&self) -> impl Future<Output = ()> + use<> {
        self.queue(None, Job::Finish, || ())
    }

    /// See [`VnicDevices::counters`].
    pub(crate) fn counters(&self, plan: &VnicPlan) -> impl Future<Output = Vec<Metric>> + use<> {
        let plan = Box::new(plan.clone());
        self.queue(None, |reply| Job::Counters(plan, reply), Vec::new)
    }

    /// Queues a job of `user`, or of the daemon itself, and returns the future of its result.
    /// `lost` replaces the result if the thread has ended.
    fn queue<T, J, L>(&self, user: Option<u32>, job: J, lost: L) -> impl Future<Output = T> + use<T, J, L>
    where
        J: FnOnce(oneshot::Sender<T>) -> Job,
        L: FnOnce() -> T,
    {
        let (reply, result) = oneshot::channel();
        self.enter(user, job(reply));
        async move { result.await.unwrap_or_else(|_| lost()) }
    }

    fn enter(&self, user: Option<u32>, job: Job) {
        let mut jobs = self.queue.jobs();
        match user {
            Some(user) => jobs.users.entry(user).or_default().push_back(job),
            None => jobs.own.push_back(job),
        }
        drop(jobs);
        self.queue.work.notify_one();
    }
}

impl<T> Timed<T> {
    fn nothing(result: T) -> Self {
        Self { result, took: Duration::ZERO }
    }
}

fn lost(plan: &VnicPlan) -> DeviceError {
    DeviceError {
        what: format!("VNIC {}", plan.name),
        cause: "the daemon's thread of devices has ended".to_owned(),
        fix: "restart the daemon".to_owned(),
    }
}

async fn timed<T>(work: impl Future<Output = T>) -> Timed<T> {
    let began = Instant::now();
    let result = work.await;
    Timed { result, took: began.elapsed() }
}

/// A result that cannot be sent is not expected any more: the daemon ends.
async fn run<D: VnicDevices>(devices: &mut D, job: Job) {
    match job {
        Job::UplinkBefore(remembered, reply) => {
            let _ = reply.send(devices.uplink_before(remembered).await);
        }
        Job::Open(plan, reply) => {
            let _ = reply.send(timed(devices.open(&plan)).await);
        }
        Job::Bind(plan, reply) => {
            let _ = reply.send(devices.bind(&plan).await);
        }
        Job::Adopt(adoptions, reply) => {
            let _ = reply.send(devices.adopt(adoptions).await);
        }
        Job::Examine(plans, reply) => {
            let mut problems = Vec::new();
            for plan in plans {
                if let Err(why) = devices.examine(&plan).await {
                    problems.push((plan.name, why));
                }
            }
            let _ = reply.send(problems);
        }
        Job::CheckRings(reply) => {
            let _ = reply.send(devices.check_rings());
        }
        Job::RepairRings(host_interface) => devices.repair_rings(&host_interface),
        Job::Close(plan, reply) => {
            let _ = reply.send(timed(devices.close(&plan)).await);
        }
        Job::RemoveOthers(keep, reply) => {
            let _ = reply.send(devices.remove_others(&keep.iter().collect::<Vec<_>>()).await);
        }
        Job::Finish(reply) => {
            devices.finish().await;
            let _ = reply.send(());
        }
        Job::Counters(plan, reply) => {
            let _ = reply.send(devices.counters(&plan));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_jobs_wait_behind_one_job_of_each_other_user() {
        let devices = Devices { queue: Arc::default(), support: Err("there is no thread".to_owned()) };
        let named = |name: &str| Job::RepairRings(name.to_owned());
        for (user, name) in [(7, "a1"), (7, "a2"), (7, "a3"), (3, "b1"), (3, "b2"), (9, "c1")] {
            devices.enter(Some(user), named(name));
        }
        let mut order = Vec::new();
        while let Some(job) = { devices.queue.jobs().take() } {
            let Job::RepairRings(name) = job else { panic!("such jobs alone were queued") };
            if name == "a1" {
                devices.enter(None, named("own"));
            }
            order.push(name);
        }
        assert_eq!(order, ["b1", "a1", "own", "c1", "b2", "a2", "a3"]);
    }
}
