//! The power fails at every write, completion and flush of a life of a volume, and every subset of what was not durable may be on the medium,
//! torn or whole. After each: the volume opens, holds what was acknowledged (and of the change under way all or nothing), no two areas share a
//! block, nothing leaks, and every block of an area holds what its owner wrote, or zeros.

use std::collections::BTreeMap;

use sietch_disk::{Buffer, Completion, DiskQueue, Operation, SubmitError};
use sietch_sim::Random;
use sietch_sim::disk::{Crash, Fault, Media, Options, SimDisk};
use sietch_volume::limits::BLOCK;
use sietch_volume::{FormatOptions, OpenError, Volume, VolumeError};

const HALF: u64 = 4 * BLOCK;
const VOID: u64 = 4 * BLOCK + 2 * HALF;
const DATA_BLOCKS: u64 = 24;
const CAPACITY: u64 = VOID + BLOCK + DATA_BLOCKS * BLOCK;
/// The pattern that stands for an earlier owner's secrets: on every block before the volume is formatted.
const STALE: u8 = 0xee;

/// A fence of the code: what a test takes away to see that somebody misses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fence {
    Superblock,
    Record,
    CheckpointFlush,
    ZeroFlush,
}

/// A queue that ignores one fence, and notes those it meets.
struct Deaf {
    disk: SimDisk,
    ignored: Option<Fence>,
    seen: Vec<Fence>,
    /// Where the last write went: tells the flushes apart.
    last: u64,
    swallowed: Vec<Completion>,
}

impl Deaf {
    fn new(disk: SimDisk, ignored: Option<Fence>) -> Self {
        Self { disk, ignored, seen: Vec::new(), last: 0, swallowed: Vec::new() }
    }

    fn meets(&mut self, fence: Fence) -> bool {
        if !self.seen.contains(&fence) {
            self.seen.push(fence);
        }
        self.ignored == Some(fence)
    }
}

impl DiskQueue for Deaf {
    fn capacity(&self) -> u64 {
        self.disk.capacity()
    }

    fn block_size(&self) -> usize {
        self.disk.block_size()
    }

    fn depth(&self) -> usize {
        self.disk.depth()
    }

    fn submit(&mut self, token: u64, operation: Operation) -> Result<(), SubmitError> {
        match operation {
            Operation::Write { offset, length, buffer, durable } => {
                self.last = offset;
                let fence = match offset {
                    ..16384 => Fence::Superblock,
                    _ => Fence::Record,
                };
                let durable = durable && !self.meets(fence);
                self.disk.submit(token, Operation::Write { offset, length, buffer, durable })
            }
            Operation::Flush => {
                let fence = if self.last < VOID { Fence::CheckpointFlush } else { Fence::ZeroFlush };
                if self.meets(fence) {
                    self.swallowed.push(Completion { token, result: Ok(()), buffer: None });
                    return Ok(());
                }
                self.disk.submit(token, Operation::Flush)
            }
            read => self.disk.submit(token, read),
        }
    }

    fn ring(&mut self) -> std::io::Result<()> {
        self.disk.ring()
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        out.append(&mut self.swallowed);
        self.disk.complete(out);
        out.len() - before
    }

    fn wait(&mut self, timeout: std::time::Duration) -> std::io::Result<()> {
        self.disk.wait(timeout)
    }

    fn in_flight(&self) -> usize {
        self.disk.in_flight() + self.swallowed.len()
    }
}

/// What the outside knows of the areas: name to user, blocks, and the byte that fills each block.
type Model = BTreeMap<String, (u32, Vec<u8>)>;

/// What a life knows when the power fails.
#[derive(Default)]
struct Known {
    formatted: bool,
    /// What was acknowledged.
    now: Model,
    /// What the change under way would make of it.
    next: Option<Model>,
}

fn put(disk: &mut Deaf, block: u64, byte: u8) -> Option<()> {
    let mut buffer = Buffer::new(BLOCK as usize);
    buffer.fill(byte);
    let write = Operation::Write { offset: block * BLOCK, length: BLOCK as usize, buffer, durable: true };
    disk.disk.submit(9, write).ok()?;
    let mut done = Vec::new();
    while done.is_empty() {
        disk.disk.wait(std::time::Duration::ZERO).ok()?;
        disk.disk.complete(&mut done);
    }
    done.pop()?.result.ok()
}

/// Block `index` of an area.
fn block_of(volume: &Volume, name: &str, index: u64) -> u64 {
    volume.range(name, index * BLOCK, BLOCK).expect("a block of it")[0].start
}

/// One change, drawn by `random`, tried on the volume and the model. `None`: the power failed.
fn step(volume: &mut Volume, disk: &mut Deaf, known: &mut Known, random: &mut Random) -> Option<()> {
    let name = ["a", "b", "c", "d"][random.index(4)].to_owned();
    let blocks = 1 + random.below(9);
    let mut next = known.now.clone();
    let there = known.now.get(&name).map(|(_, bytes)| bytes.len() as u64);
    let free = DATA_BLOCKS - known.now.values().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
    let outcome = match (random.below(5), there) {
        (0, Some(_)) => {
            next.remove(&name);
            known.next = Some(next.clone());
            volume.delete(disk, &name)
        }
        (1, Some(length)) => {
            let index = random.below(length);
            next.get_mut(&name)?.1[index as usize] = 0;
            known.next = Some(next.clone());
            volume.trim(disk, &name, index * BLOCK, BLOCK)
        }
        (2, Some(length)) => {
            // The owner writes to its area. It fills blocks, so that a block that changes hands shows.
            let index = random.below(length);
            let byte = 1 + random.below(200) as u8;
            next.get_mut(&name)?.1[index as usize] = byte;
            known.next = Some(next.clone());
            put(disk, block_of(volume, &name, index), byte)?;
            Ok(())
        }
        (_, Some(_)) => {
            next.get_mut(&name)?.1.resize(blocks as usize, 0);
            known.next = Some(next.clone());
            volume.resize(disk, &name, blocks * BLOCK)
        }
        (_, None) => {
            next.insert(name.clone(), (7, vec![0; blocks as usize]));
            known.next = Some(next.clone());
            volume.create(disk, &name, 7, blocks * BLOCK)
        }
    };
    match outcome {
        Ok(()) => known.now = next,
        Err(VolumeError::Full { asked, free: told }) => {
            assert_eq!(
                (told, asked > free * BLOCK),
                (free * BLOCK, true),
                "what is free is not what it says"
            );
        }
        Err(VolumeError::Failed(_)) => return None,
        Err(other) => panic!("{other}"),
    }
    known.next = None;
    Some(())
}

struct Life {
    seed: u64,
    steps: u64,
    lives: u64,
    ignored: Option<Fence>,
}

impl Life {
    fn new(seed: u64) -> Self {
        Self { seed, steps: 12, lives: 3, ignored: None }
    }

    /// Lives until boundary `off`; what the medium is then, what is known, what fences were met, and whether it lived to the end.
    fn live(&self, off: u64) -> (Media, Known, Vec<Fence>, bool) {
        let tear = [8, 64, 512][self.seed as usize % 3];
        let mut options = Options::new(CAPACITY as usize);
        options.tear = tear;
        options.block_size = if self.seed.is_multiple_of(2) { 512 } else { 4096 };
        let media = Media::new(options, Random::new(self.seed));
        let mut seen = Vec::new();
        // An earlier owner's bytes are everywhere.
        let mut disk = Deaf::new(media.open(), None);
        for block in 0..CAPACITY / BLOCK {
            put(&mut disk, block, STALE).expect("there is power");
        }
        let begin = media.boundaries();
        media.power_off_at(begin + off);
        let mut known = Known::default();
        let mut random = Random::new(self.seed ^ 0x5eed);
        let mut run = || {
            let mut disk = Deaf::new(media.open(), self.ignored);
            let formatted = Volume::format(&mut disk, FormatOptions { identity: 77, half_bytes: Some(HALF) });
            seen.append(&mut disk.seen);
            formatted.ok()?;
            known.formatted = true;
            for _ in 0..self.lives {
                let mut disk = Deaf::new(media.open(), self.ignored);
                let opened = match Volume::open(&mut disk) {
                    Ok(volume) => Some(volume),
                    Err(OpenError::Failed(_)) => None,
                    Err(other) => panic!("with power: {other}"),
                };
                let done = opened.and_then(|mut volume| {
                    assert!(volume.areas().map(|area| &area.name).eq(volume.areas().map(|area| &area.name)));
                    for _ in 0..self.steps {
                        step(&mut volume, &mut disk, &mut known, &mut random)?;
                    }
                    Some(())
                });
                seen.append(&mut disk.seen);
                done?;
            }
            Some(())
        };
        let done = run().is_some();
        (media, known, seen, done)
    }

    /// Every boundary, and `draws` media for each.
    fn enumerate(&self, draws: u64) -> Result<u64, String> {
        let mut random = Random::new(self.seed ^ 0xc0ffee);
        let mut judged = 0;
        for off in 1.. {
            let (media, known, _, done) = self.live(off);
            for draw in 0..draws + 2 {
                let fork = media.fork(Random::new(draw));
                fork.crash(match draw {
                    0 => Crash::Nothing,
                    1 => Crash::Everything,
                    draw => Crash::Random(Random::new(random.word() ^ draw)),
                });
                judge(&fork, &known)
                    .map_err(|error| format!("seed {}, boundary {off}, draw {draw}: {error}", self.seed))?;
                judged += 1;
            }
            if done {
                return Ok(judged);
            }
        }
        Ok(judged)
    }
}

/// Whether the medium holds what `known` allows.
fn judge(media: &Media, known: &Known) -> Result<(), String> {
    let mut disk = media.open();
    let mut volume = match Volume::open(&mut disk) {
        Ok(volume) => volume,
        Err(OpenError::NotFormatted | OpenError::Damaged { .. }) if !known.formatted => return Ok(()),
        Err(error) => return Err(format!("does not open: {error}")),
    };
    let image = media.image();
    let allowed: Vec<&Model> = [Some(&known.now), known.next.as_ref()].into_iter().flatten().collect();
    let fits = |model: &&Model| -> Result<(), String> {
        if volume.areas().count() != model.len() {
            return Err(format!("{} areas instead of {}", volume.areas().count(), model.len()));
        }
        for (name, (uid, bytes)) in model.iter() {
            let area = volume.find(name).ok_or(format!("{name} is missing"))?;
            if (area.uid, area.size()) != (*uid, bytes.len() as u64 * BLOCK) {
                return Err(format!("{name} has {} bytes of uid {}", area.size(), area.uid));
            }
            for (index, byte) in bytes.iter().enumerate() {
                let at = (block_of(&volume, name, index as u64) * BLOCK) as usize;
                let block = &image[at..at + BLOCK as usize];
                // A write or a trim under way may have changed any part of its block to what it makes of it.
                let other = known.next.as_ref().and_then(|next| next.get(name)?.1.get(index).copied());
                let was = known.now.get(name).and_then(|now| now.1.get(index).copied());
                let may = |found: &u8| found == byte || Some(*found) == other || Some(*found) == was;
                if let Some(found) = block.iter().find(|found| !may(found)) {
                    return Err(format!("block {index} of {name} holds {found:#x} instead of {byte:#x}"));
                }
            }
        }
        let used: u64 = model.values().map(|(_, bytes)| bytes.len() as u64).sum();
        if volume.free() != (DATA_BLOCKS - used) * BLOCK {
            return Err(format!("{} bytes free beside {used} blocks", volume.free()));
        }
        Ok(())
    };
    let verdicts: Vec<String> = allowed.iter().filter_map(|model| fits(model).err()).collect();
    if verdicts.len() == allowed.len() {
        return Err(verdicts.join("; or "));
    }
    // A second life: what is free can be had, and is zeros.
    if volume.free() > 0 && volume.find("z").is_none() {
        let free = volume.free();
        volume
            .create(&mut disk, "z", 1, free)
            .map_err(|error| format!("what is free cannot be had: {error}"))?;
        let Err(VolumeError::Full { .. }) = volume.create(&mut disk, "y", 1, BLOCK) else {
            return Err("more than everything".to_owned());
        };
        volume.delete(&mut disk, "z").map_err(|error| error.to_string())?;
    }
    let before: Vec<_> = volume.areas().cloned().collect();
    drop(volume);
    let again = Volume::open(&mut disk).map_err(|error| format!("does not open twice: {error}"))?;
    if !again.areas().eq(before.iter()) { Err("another state the second time".to_owned()) } else { Ok(()) }
}

#[test]
fn power_loss_at_every_boundary_leaves_before_or_after() {
    let judged: u64 = (1..=6).map(|seed| Life::new(seed).enumerate(4).expect("the promise")).sum();
    assert!(judged > 3000, "only {judged} media");
}

/// What a mutation does is noticed by the same judge.
fn is_noticed(ignored: Option<Fence>) -> bool {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let noticed = (1..=6).any(|seed| {
        let life = Life { ignored, ..Life::new(seed) };
        std::panic::catch_unwind(|| life.enumerate(4)).map_or(true, |verdict| verdict.is_err())
    });
    std::panic::set_hook(hook);
    noticed
}

#[test]
fn ignoring_any_fence_is_noticed() {
    let (_, _, seen, _) = Life::new(1).live(u64::MAX / 2);
    for fence in [Fence::Superblock, Fence::Record, Fence::CheckpointFlush, Fence::ZeroFlush] {
        assert!(seen.contains(&fence), "{fence:?} never happened");
        assert!(is_noticed(Some(fence)), "nobody misses {fence:?}");
    }
    assert!(!is_noticed(None), "the gate cries wolf");
}

/// A format over an old volume, cut short anywhere, leaves the old volume, or none, or the new one: never an older state.
#[test]
fn a_format_cut_short_never_shows_an_older_state() {
    let noticed = |ignored: Option<Fence>| {
        let (old, known, _, _) = Life { steps: 20, ..Life::new(2) }.live(u64::MAX / 2);
        let mut wrong = 0;
        for off in 1..20 {
            for draw in 0..30 {
                let media = old.fork(Random::new(draw));
                media.power_off_at(media.boundaries() + off);
                let mut disk = Deaf::new(media.open(), ignored);
                let done =
                    Volume::format(&mut disk, FormatOptions { identity: 78, half_bytes: Some(HALF) }).is_ok();
                media.crash(Crash::Random(Random::new(draw ^ off << 8)));
                let mut disk = media.open();
                wrong += u32::from(match Volume::open(&mut disk) {
                    Ok(volume) if volume.areas().count() == 0 => false,
                    Ok(volume) => {
                        done || volume.areas().count() != known.now.len()
                            || !volume.areas().all(|area| {
                                known
                                    .now
                                    .get(&area.name)
                                    .is_some_and(|(_, bytes)| bytes.len() as u64 * BLOCK == area.size())
                            })
                    }
                    Err(OpenError::NotFormatted | OpenError::Damaged { .. }) => done,
                    Err(_) => true,
                });
            }
        }
        wrong > 0
    };
    assert!(!noticed(None), "a format cut short shows an older state");
    assert!(
        noticed(Some(Fence::CheckpointFlush)),
        "nobody misses the flush between blanks and the new superblock"
    );
}

#[test]
fn a_failed_write_of_metadata_stops_the_volume_and_what_is_there_stays() {
    for nth in 1..12 {
        let media = Media::new(Options::new(CAPACITY as usize), Random::new(nth));
        let mut disk = media.open();
        Volume::format(&mut disk, FormatOptions { identity: 5, half_bytes: Some(HALF) }).expect("a format");
        let mut volume = Volume::open(&mut disk).expect("a volume");
        volume.create(&mut disk, "a", 1, BLOCK).expect("room");
        media.inject(nth, Fault::Error(5));
        let mut acknowledged = Vec::new();
        let mut failed = false;
        for name in ["b", "c", "d", "e", "f", "g"] {
            match volume.create(&mut disk, name, 1, BLOCK) {
                Ok(()) => {
                    assert!(volume.failure().is_none(), "acknowledged after a failure");
                    acknowledged.push(name);
                }
                Err(VolumeError::Failed(failure)) => {
                    // A write of zeros that failed has cost nobody anything.
                    assert_eq!(volume.failure().is_some(), failure.action != "zeroing");
                    failed = true;
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!(failed, "write {nth} did not fail");
        let again = Volume::open(&mut disk).expect("it opens");
        for name in acknowledged {
            assert!(again.find(name).is_some(), "{name} is lost after write {nth} failed");
        }
    }
}

/// Bits rot anywhere in the metadata: the volume is what it was, or refuses to open. It never shows an older state, unless nothing proves that there was a
/// newer one: the last record alone.
#[test]
fn rotten_metadata_is_refused_or_harmless() {
    let (media, known, _, _) = Life::new(3).live(u64::MAX / 2);
    // The last life ended with records in the journal: its last one may be lost.
    let image = media.image();
    let mut refused = 0;
    for byte in (0..VOID as usize).step_by(61) {
        let fork = media.fork(Random::new(1));
        fork.crash(Crash::Everything);
        fork.rot(byte, (byte % 8) as u8);
        match Volume::open(&mut fork.open()) {
            Ok(volume) => {
                let same = |model: &Model| {
                    model.len() == volume.areas().count()
                        && model.iter().all(|(name, (_, bytes))| {
                            volume.find(name).is_some_and(|area| area.size() == bytes.len() as u64 * BLOCK)
                        })
                };
                let last_record = image[byte / BLOCK as usize * BLOCK as usize..].starts_with(b"SVRC");
                assert!(same(&known.now) || last_record, "byte {byte} changed the state");
            }
            Err(OpenError::Damaged { .. }) => refused += 1,
            Err(other) => panic!("byte {byte}: {other}"),
        }
    }
    assert!(refused > 0, "a rotten checkpoint opens");
}
