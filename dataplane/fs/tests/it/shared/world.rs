//! Clients of one service in one thread, and a model.
//!
//! 1. Each call of a client goes on until it does not return `EAGAIN`. In between other things
//!    happen, chosen by a seed: other clients answer, logs are digested, time passes, and other
//!    clients run operations of their own.
//! 2. When the call returns, the same call is made on the model, which has no clients: what a call
//!    returned must be what it returns when all calls happen one after the other in the order in
//!    which they returned.
//! 3. A call inside which the power fails may have happened or not. All others have happened.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use rustix::io::Errno;
use sietch_fs::check::{Options, check};
use sietch_fs::digest::DigestError;
use sietch_fs::file_system::{Handle, Waited};
use sietch_fs::inode::InodeNumber;
use sietch_fs::lease::{ClientNumber, Replay, Times};
use sietch_fs::log::{Durability, LogIdentity, LogWriter};
use sietch_fs::name::NameKey;
use sietch_fs::pool::Reader;
use sietch_fs::shared::{InlineShared, SharedDigest};
use sietch_fs::{Client, Digest, FileSystem as _};
use sietch_fs_oracle::Model;
use sietch_fs_oracle::program::generate::{Mix, draw};
use sietch_fs_oracle::program::operation::Operation;
use sietch_fs_oracle::program::run::{State, apply};
use sietch_fs_oracle::program::tree::{Tree, tree};
use sietch_sim::Memory;
use sietch_structures::Random;

use super::dual::Dual;
use crate::setup::{BIRTH, Disk, Media};

pub(super) const KEY: NameKey = NameKey([7; 16]);
const SEED: u64 = 0x1234_5678;
/// Calls that an operation makes inside another one before it gives up.
const NESTED_TRIES: usize = 40;
/// Calls after which an operation is stuck.
const TRIES: usize = 20_000;
const DEPTH: usize = 3;

pub(super) type Peer = Client<InlineShared<Disk, Memory>, Memory>;
type Core = Rc<RefCell<SharedDigest<Disk, Memory>>>;

/// How a world is made.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) clients: usize,
    pub(super) seed: u64,
    /// Bytes of the pool and of each log.
    pub(super) pool: usize,
    pub(super) log: usize,
    /// Each next client has a log of half the size, down from the first one again after so many.
    pub(super) log_sizes: usize,
    pub(super) mix: Mix,
    pub(super) times: Times,
    /// Leases that a client keeps.
    pub(super) most: usize,
    /// The memory of a log loses its power alone: a process dies.
    pub(super) dies_alone: bool,
    /// Users of each client, if its front end tries operations: those of several wait at a time.
    pub(super) users: Option<usize>,
}

impl Plan {
    pub(super) fn new(clients: usize, seed: u64, mix: Mix) -> Self {
        let times = Times::default();
        let (pool, log, log_sizes, most, dies_alone) = (8 << 20, 1 << 20, 1, 1 << 15, false);
        Self { clients, seed, pool, log, log_sizes, mix, times, most, dies_alone, users: None }
    }
}

/// A client, or a further user of one, and what the test knows of it.
pub(super) struct Slot {
    pub(super) client: Rc<RefCell<Option<Peer>>>,
    pub(super) state: RefCell<State>,
    memory: Memory,
    /// Sequence of the next record before the call that is made.
    before: Cell<u64>,
    is_in_call: Cell<bool>,
    /// What the call that is tried has waited for.
    waited: RefCell<Waited>,
    /// When it last took messages of the service.
    answered: Cell<u64>,
    /// It does nothing any more, and answers nothing.
    pub(super) is_silent: Cell<bool>,
}

/// The module's header describes it.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) media: Media,
    pub(super) core: Core,
    pub(super) slots: Vec<Slot>,
    pub(super) model: RefCell<Model>,
    /// Inodes of the model by those of the file system, and the other way round.
    inodes: RefCell<(HashMap<InodeNumber, InodeNumber>, HashMap<InodeNumber, InodeNumber>)>,
    /// Handles of the file system by those of the model.
    handles: RefCell<HashMap<Handle, Handle>>,
    pub(super) random: RefCell<Random>,
    now: Cell<u64>,
    depth: Cell<usize>,
    /// Clients do nothing but what the test says.
    pub(super) is_quiet: Cell<bool>,
    /// A call is made once: the test makes it again.
    pub(super) is_in_turns: Cell<bool>,
    failure: RefCell<Option<String>>,
    /// The model as if the call had happened in which the power failed.
    in_flight: RefCell<Option<Model>>,
    /// Calls that returned, and those that were given up.
    pub(super) calls: Cell<(u64, u64)>,
    history: RefCell<Vec<String>>,
}

impl World {
    pub(super) fn new(plan: Plan) -> Self {
        let media = Media::new(plan.pool, plan.log);
        media.format(KEY);
        let core = Rc::new(RefCell::new(SharedDigest::new(media.digest(), plan.times)));
        let log = |index: usize| plan.log >> (index % plan.log_sizes);
        let slot = |index| Slot {
            client: Rc::new(RefCell::new(None)),
            state: RefCell::new(State::new()),
            memory: match plan.dies_alone {
                true => Memory::new(log(index)),
                false => Memory::new(log(index)).joined(&media.pool),
            },
            before: Cell::new(0),
            is_in_call: Cell::new(false),
            waited: RefCell::default(),
            answered: Cell::new(0),
            is_silent: Cell::new(false),
        };
        let mut slots: Vec<Slot> = (0..plan.clients).map(slot).collect();
        for index in plan.clients..plan.clients * plan.users.unwrap_or(1) {
            let (client, own) = (Rc::clone(&slots[index % plan.clients].client), slot(index));
            slots.push(Slot { client, ..own });
        }
        let roots = HashMap::from([(InodeNumber::ROOT, InodeNumber::ROOT)]);
        let world = Self {
            plan,
            media,
            core,
            slots,
            model: RefCell::new(Model::with_root(KEY, 0o755, BIRTH)),
            inodes: RefCell::new((roots.clone(), roots)),
            handles: RefCell::default(),
            random: RefCell::new(Random::new(plan.seed)),
            now: Cell::new(0),
            depth: Cell::new(0),
            is_quiet: Cell::new(false),
            is_in_turns: Cell::new(false),
            failure: RefCell::default(),
            in_flight: RefCell::default(),
            calls: Cell::default(),
            history: RefCell::default(),
        };
        for index in 0..plan.clients {
            world.join(index);
        }
        world
    }

    /// The client of a slot.
    pub(super) fn client_of(&self, index: usize) -> ClientNumber {
        Self::number(index % self.plan.clients)
    }

    pub(super) fn number(index: usize) -> ClientNumber {
        ClientNumber(index as u32 + 1)
    }

    /// A client comes, as a new one.
    pub(super) fn join(&self, index: usize) {
        let slot = &self.slots[index];
        let number = Self::number(index);
        let state = self.core.borrow_mut().join(number, slot.memory.clone(), SEED).expect("a new epoch");
        let identity = LogIdentity { log: number.0, epoch: state.epoch, seed: SEED };
        let mut writer = LogWriter::new(slot.memory.clone(), identity, Durability::Operation).expect("a log");
        writer.continue_at(state.position, state.sequence + 1);
        let root = self.core.borrow_mut().digest_mut().root();
        let reader = Reader::new(self.media.members(), root).expect("a reader");
        let service = InlineShared::new(Rc::clone(&self.core), number, reader, 5);
        let mut client = Client::new(service, writer, number.0);
        // Clients drop what was digested in steps of several sizes.
        client.drop_by([64, 1024, 1 << 20][index % 3]);
        client.keep_leases(self.plan.most);
        *slot.client.borrow_mut() = Some(client);
        *slot.state.borrow_mut() = State::new();
        slot.answered.set(self.now.get());
        slot.is_silent.set(false);
    }

    pub(super) fn is_off(&self) -> bool {
        self.media.pool.is_off()
    }

    /// Boundaries that the pool and each log have passed.
    pub(super) fn boundaries(&self) -> Vec<u64> {
        let logs = self.slots.iter().map(|slot| slot.memory.boundaries());
        std::iter::once(self.media.pool.boundaries()).chain(logs).collect()
    }

    /// The power fails at a boundary of the pool (0) or of a log.
    pub(super) fn power_off_at(&self, memory: usize, at: u64) {
        match memory.checked_sub(1) {
            None => self.media.pool.power_off_at(at),
            Some(index) => self.slots[index].memory.power_off_at(at),
        }
    }

    pub(super) fn chance(&self, per_mille: u32) -> bool {
        self.random.borrow_mut().chance(per_mille)
    }

    pub(super) fn fail(&self, cause: String) {
        let mut failure = self.failure.borrow_mut();
        if failure.is_none() && !self.is_off() {
            *failure = Some(cause);
        }
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.is_off() || self.failure.borrow().is_some()
    }

    /// The result so far.
    pub(super) fn result(&self) -> Result<(), String> {
        match &*self.failure.borrow() {
            Some(cause) => {
                let history = self.history.borrow();
                let last = history.len().saturating_sub(60);
                Err(format!("seed {}: {cause}\n{}", self.plan.seed, history[last..].join("\n")))
            }
            None => Ok(()),
        }
    }

    pub(super) fn note(&self, line: impl FnOnce() -> String) {
        self.history.borrow_mut().push(line());
    }

    /// The inode of the file system for one of the model.
    pub(super) fn real(&self, inode: InodeNumber) -> InodeNumber {
        self.inodes.borrow().1.get(&inode).copied().unwrap_or(InodeNumber(u64::MAX))
    }

    /// Whether these are the same inode.
    pub(super) fn is_same(&self, real: InodeNumber, model: InodeNumber) -> bool {
        let (by_real, by_model) = &mut *self.inodes.borrow_mut();
        *by_real.entry(real).or_insert(model) == model && *by_model.entry(model).or_insert(real) == real
    }

    pub(super) fn real_handle(&self, handle: Handle) -> Handle {
        self.handles.borrow().get(&handle).copied().unwrap_or(Handle(u64::MAX))
    }

    pub(super) fn map_handle(&self, model: Handle, real: Handle) {
        self.handles.borrow_mut().insert(model, real);
    }

    /// Calls a client until the call is done. `EAGAIN`: it was given up, and has no effect.
    pub(super) fn call<T>(
        &self,
        index: usize,
        mut call: impl FnMut(&mut Peer) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let most = if self.depth.get() > 1 { NESTED_TRIES } else { TRIES };
        if let Some(client) = &*self.slots[index].client.borrow() {
            self.slots[index].before.set(client.log().next_sequence());
        }
        for _ in 0..most {
            if self.has_stopped() {
                return Err(Errno::IO);
            }
            let slot = &self.slots[index];
            let result = match &mut *slot.client.borrow_mut() {
                Some(client) if self.plan.users.is_some() => {
                    let user = (index / self.plan.clients % 3) as u32;
                    client.begin_try(slot.waited.take().of_user(Some(user)));
                    let result = call(client);
                    slot.waited.replace(client.end_try().map(|(waited, _)| waited).unwrap_or_default());
                    result
                }
                Some(client) => call(client),
                None => Err(Errno::IO),
            };
            if self.has_died(index) || !matches!(result, Err(Errno::AGAIN)) {
                let (done, given_up) = self.calls.get();
                self.calls.set((done + 1, given_up));
                return result;
            }
            if self.is_in_turns.get() {
                return result;
            }
            self.something_else(index);
        }
        self.give_up(index);
        let (done, given_up) = self.calls.get();
        self.calls.set((done, given_up + 1));
        if most == TRIES {
            let table = self.core.borrow().leases();
            self.fail(format!("client {index} is stuck; {table}"));
        }
        Err(Errno::AGAIN)
    }

    /// The call that is tried is not called again.
    pub(super) fn give_up(&self, index: usize) {
        drop(self.slots[index].waited.take());
        if let Some(client) = &mut *self.slots[index].client.borrow_mut()
            && self.plan.users.is_none()
        {
            client.abandon();
        }
    }

    /// Whether a client has died inside a call.
    pub(super) fn has_died(&self, index: usize) -> bool {
        self.slots[index].memory.is_off() && !self.is_off()
    }

    /// A client died inside a call; whether its log has a record of the call.
    pub(super) fn buried(&self, index: usize) -> bool {
        let slot = &self.slots[index];
        if slot.client.borrow_mut().take().is_none() {
            return false;
        }
        slot.is_silent.set(true);
        self.note(|| format!("{index} dies in a call"));
        self.end(index);
        let state = self.core.borrow_mut().digest_mut().log_state(Self::number(index).0);
        state.expect("the state of its log").sequence >= slot.before.get()
    }

    /// The service ends a client.
    fn end(&self, index: usize) {
        for _ in 0..100 {
            let died = self.core.borrow_mut().died(Self::number(index));
            match died {
                Ok(()) => return,
                // Others read what the digest needs.
                Err(DigestError::Held) => (0..self.slots.len()).for_each(|other| self.advance(other)),
                Err(error) => return self.fail(format!("the service: {error}")),
            }
        }
        self.fail("a client cannot be ended".to_owned());
    }

    /// The call in which the power failed would have had this effect.
    pub(super) fn in_flight(&self, model: Model) {
        self.in_flight.borrow_mut().get_or_insert(model);
    }

    /// What the file system may have after the power failed.
    pub(super) fn allowed(&self) -> Vec<Tree> {
        let mut trees = vec![tree(&mut *self.model.borrow_mut()).expect("a model can be read")];
        if let Some(model) = &mut *self.in_flight.borrow_mut() {
            trees.push(tree(model).expect("a model can be read"));
        }
        trees
    }

    /// One thing that happens while a client waits.
    fn something_else(&self, index: usize) {
        let (what, other) = {
            let random = &mut *self.random.borrow_mut();
            (random.below(10), random.index(self.slots.len()))
        };
        match what {
            0..=3 => self.advance(other),
            4 | 5 => self.service(|core| core.step().map(drop)),
            6 => self.service(|core| core.digest(self.client_of(other)).map(drop)),
            7 => {
                let passed = self.random.borrow_mut().below(2 * self.plan.times.hold);
                self.answer_in_time();
                self.pass(passed);
            }
            _ if other != index && self.depth.get() < DEPTH && !self.is_quiet.get() => self.run_one(other),
            _ => self.advance(other),
        }
    }

    /// A client that goes on answers the service in time, also while others do much inside its
    /// call.
    fn answer_in_time(&self) {
        for index in 0..self.plan.clients {
            let answered = self.slots[index].answered.get();
            if self.now.get().saturating_sub(answered) > self.plan.times.answer / 4 {
                self.advance(index);
            }
        }
    }

    pub(super) fn advance(&self, index: usize) {
        let slot = &self.slots[index];
        if slot.is_silent.get() {
            return;
        }
        slot.answered.set(self.now.get());
        if let Some(client) = &mut *slot.client.borrow_mut() {
            // The rest is dropped by operations, or before a lease is used.
            client.advance_by_step();
        }
    }

    pub(super) fn service(
        &self,
        work: impl FnOnce(&mut SharedDigest<Disk, Memory>) -> Result<(), DigestError>,
    ) {
        match work(&mut self.core.borrow_mut()) {
            Ok(()) | Err(DigestError::Held) => {}
            Err(error) => self.fail(format!("the service: {error}")),
        }
        for (index, slot) in self.slots.iter().enumerate().take(self.plan.clients) {
            let core = self.core.borrow();
            if let Some(cause) = core.ended(Self::number(index))
                && !slot.is_silent.get()
            {
                self.fail(format!("client {index} was ended: {cause}"));
            }
        }
    }

    /// Time passes.
    pub(super) fn pass(&self, nanoseconds: u64) {
        self.now.set(self.now.get() + nanoseconds);
        self.service(|core| core.tick(self.now.get()).map(drop));
    }

    /// Runs an operation of a client that does nothing else.
    pub(super) fn run_one(&self, index: usize) {
        let slot = &self.slots[index];
        if self.has_stopped() || slot.is_in_call.get() || slot.is_silent.get() {
            return;
        }
        if slot.client.borrow().is_none() {
            return;
        }
        let operation = {
            let model = self.model.borrow();
            draw(&mut self.random.borrow_mut(), &model, &slot.state.borrow(), &self.plan.mix)
        };
        self.run(index, &operation);
    }

    /// Runs an operation of a client.
    pub(super) fn run(&self, index: usize, operation: &Operation) {
        let slot = &self.slots[index];
        slot.is_in_call.set(true);
        self.depth.set(self.depth.get() + 1);
        let depth = self.depth.get();
        self.note(|| format!("{:>depth$} begins {operation:?}", index));
        let outcome = apply(&mut Dual::new(self, index), &mut slot.state.borrow_mut(), operation);
        self.note(|| format!("{:>depth$} {outcome:?}", index));
        self.depth.set(self.depth.get() - 1);
        slot.is_in_call.set(false);
    }

    /// Compares everything that names lead to, as a client sees it.
    pub(super) fn compare(&self, index: usize) {
        let was_quiet = self.is_quiet.replace(true);
        self.depth.set(1);
        self.note(|| format!("{index} reads the tree"));
        if let Err(errno) = tree(&mut Dual::new(self, index)) {
            self.fail(format!("the tree cannot be read: {errno}"));
        }
        self.depth.set(0);
        self.is_quiet.set(was_quiet);
    }

    /// A client dies between two operations. A new one comes.
    pub(super) fn die(&self, index: usize) {
        let slot = &self.slots[index];
        if slot.is_in_call.get() {
            return;
        }
        self.note(|| format!("{index} dies"));
        drop(slot.client.borrow_mut().take());
        slot.state.borrow_mut().release_all(&mut *self.model.borrow_mut());
        self.end(index);
        self.join(index);
    }

    /// A client that died inside a call, or was ended, is replaced by a new one.
    pub(super) fn replace(&self, index: usize) {
        let slot = &self.slots[index];
        let is_ended = slot.is_silent.get() && !self.core.borrow().is_served(Self::number(index));
        if slot.is_in_call.get() || !is_ended {
            return;
        }
        drop(slot.client.borrow_mut().take());
        slot.state.borrow_mut().release_all(&mut *self.model.borrow_mut());
        self.end(index);
        slot.memory.crash(&mut self.random.borrow_mut());
        self.join(index);
    }

    /// The process of a client dies at one of its next stores.
    pub(super) fn dies_at(&self, index: usize, store: u64) {
        let memory = &self.slots[index].memory;
        memory.power_off_at(memory.boundaries() + store);
    }

    /// All clients answer and all logs are digested, until nothing happens any more.
    pub(super) fn settle(&self) {
        for _ in 0..200 {
            for index in 0..self.plan.clients {
                self.advance(index);
                self.service(|core| core.digest(Self::number(index)).map(drop));
            }
            self.pass(self.plan.times.hold);
            self.service(|core| core.step().map(drop));
        }
    }

    /// Nothing is open any more: nothing may be left of what has no name. Ends all clients, and
    /// checks the pool.
    pub(super) fn finish(self) -> Result<(), String> {
        for index in 0..self.slots.len() {
            self.slots[index].state.borrow_mut().release_all(&mut Dual::new(&self, index));
        }
        self.settle();
        self.result()?;
        let faults: Vec<_> = self
            .slots
            .iter()
            .filter_map(|slot| slot.client.borrow_mut().as_mut().map(|c| c.service().faults().to_vec()))
            .flatten()
            .collect();
        if !faults.is_empty() {
            return Err(format!("seed {}: {faults:?}", self.plan.seed));
        }
        let left = self.core.borrow_mut().digest_mut().kept_orphan(InodeNumber(0));
        if let Some(inode) = left.map_err(|fault| fault.to_string())? {
            let history = self.history.borrow().join("\n");
            return Err(format!("seed {}: inode {inode} is left\n{history}", self.plan.seed));
        }
        let Self { media, core, mut slots, model, plan, .. } = self;
        let mut end = model.into_inner();
        let expected = tree(&mut end).map_err(|errno| errno.to_string())?;
        slots.truncate(plan.clients);
        for (index, slot) in slots.iter().enumerate() {
            *slot.client.borrow_mut() = None;
            core.borrow_mut().died(Self::number(index)).map_err(|error| error.to_string())?;
        }
        drop(core);
        recovered(&media, &slots, &mut Random::new(1), &[expected])
    }

    /// Power was lost: recovers, and checks what is there.
    pub(super) fn recover(&self, dice: &mut Random) -> Result<(), String> {
        let expected = self.allowed();
        for slot in &self.slots {
            slot.memory.crash(dice);
        }
        self.media.crash(dice);
        let result = recovered(&self.media, &self.slots, dice, &expected);
        result.map_err(|cause| {
            let history = self.history.borrow();
            let last = history.len().saturating_sub(60);
            format!("seed {}: {cause}\n{}", self.plan.seed, history[last..].join("\n"))
        })
    }
}

/// Digests all logs in any order, and compares the tree with those that may be there.
fn recovered(media: &Media, slots: &[Slot], dice: &mut Random, allowed: &[Tree]) -> Result<(), String> {
    let mut digest: Digest<Disk> = media.digest();
    let mut logs: Vec<usize> = (0..slots.len()).collect();
    let mut replay = Replay::default();
    while !logs.is_empty() {
        // One batch of any log.
        let at = dice.index(logs.len());
        digest.set_batch_records(1 + dice.below(20));
        let number = World::number(logs[at]);
        let mut judge = replay.of(number);
        let batch = digest.digest_judged(&slots[logs[at]].memory, number.0, SEED, &mut judge);
        let batch = batch.map_err(|error| format!("recovery: {error}"))?;
        if let Some(invalid) = batch.invalid {
            return Err(format!("recovery: log {number:?} at {}: {}", invalid.position, invalid.cause));
        }
        if batch.records == 0 {
            logs.swap_remove(at);
        }
    }
    drop(digest);
    // The log of the client that looks is an empty one.
    let looking = Media { log: Memory::new(64 << 10).joined(&media.pool), ..media.clone() };
    let looking = looking.open_as(99)?;
    let mut client = looking;
    let found = tree(&mut client).map_err(|errno| format!("the tree cannot be read: {errno}"))?;
    if !allowed.iter().any(|tree| tree.difference(&found).is_none()) {
        let closest = allowed[0].difference(&found).unwrap_or_default();
        return Err(format!("expected one of {} trees, and found {closest}", allowed.len()));
    }
    let (mut digest, _) = client.into_parts().0.into_parts();
    let report = check(digest.pool(), Options { data: true }).map_err(|fault| fault.to_string())?;
    if report.findings.is_empty() { Ok(()) } else { Err(format!("the check: {:#?}", report.findings)) }
}
