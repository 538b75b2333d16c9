//! Power failures at every write, completion and flush in the life of a volume. Every subset of the
//! writes that were not durable may be on the medium, torn or whole. After each failure the volume
//! opens and holds what was acknowledged. Of the change under way it holds all or nothing. No two
//! areas share a block, nothing leaks, and every block of an area holds what its owner wrote, or
//! zeros.
//!
//! 1. Areas are created, grow, shrink, are trimmed, written and deleted, by seed. A journal of a
//!    few blocks makes checkpoints frequent.
//! 2. Where a power loss may leave only a few different media, all of them are tried. Otherwise a
//!    random selection is tried, which is larger in a long run.
//! 3. Crashes are nested: the power fails again at every boundary of the opening that follows, and
//!    sometimes in the one after that.
//! 4. [`SITES`] lists every line of the source that makes data durable. A line that is missing
//!    there fails the gate. Each fence is removed once, and some crash must reveal it.

use std::collections::BTreeMap;

use sietch_disk::{Buffer, Completion, DiskQueue, Operation, Priority, SubmitError};
use sietch_sim::disk::{Crash, Fault, Media, Options, SimDisk};
use sietch_sim::seeds::{self, Budget};
use sietch_sim::{ExhaustiveChooser, Random};
use sietch_volume::limits::{BLOCK, HALVES_START};
use sietch_volume::{FormatOptions, OpenError, Volume, VolumeError};

const HALF: u64 = 4 * BLOCK;
const VOID: u64 = 4 * BLOCK + 2 * HALF;
const DATA_BLOCKS: u64 = 24;
const CAPACITY: u64 = VOID + BLOCK + DATA_BLOCKS * BLOCK;
/// The pattern that stands for an earlier owner's secrets: on every block before the volume is
/// formatted.
const STALE: u8 = 0xee;

/// A fence of the code. A test removes one to check that a crash reveals it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fence {
    Superblock,
    Record,
    FormatFlush,
    CheckpointFlush,
    ZeroFlush,
}

/// Every line of the source that makes data durable, in the order of files and lines, with the
/// fences that it makes. None: the function that it calls makes them.
const SITES: [(&str, &str, &[Fence]); 8] = [
    ("transfer.rs", "execute(disk, \"flushing\", 0, Operation::Flush)", &[]),
    ("transfer.rs", "None => flush(disk)", &[Fence::ZeroFlush]),
    ("volume.rs", "flush(disk)?", &[Fence::FormatFlush]),
    ("volume.rs", "write_superblocks(disk, &superblock)?", &[]),
    ("volume.rs", "\"writing a record\", self.position, &bytes, true)", &[Fence::Record]),
    ("volume.rs", ".and_then(|()| flush(disk))", &[Fence::CheckpointFlush]),
    ("volume.rs", "write_superblocks(disk, &next)", &[]),
    ("volume.rs", "\"writing a superblock\", offset, &bytes, true)", &[Fence::Superblock]),
];

/// A queue that ignores one fence, and notes those it meets.
struct FencelessDisk {
    disk: SimDisk,
    ignored: Option<Fence>,
    seen: Vec<Fence>,
    /// The target of the last write, and whether a volume is being formatted. They identify a
    /// flush.
    last: u64,
    formats: bool,
    swallowed: Vec<Completion>,
}

impl FencelessDisk {
    fn new(disk: SimDisk, ignored: Option<Fence>) -> Self {
        Self { disk, ignored, seen: Vec::new(), last: 0, formats: false, swallowed: Vec::new() }
    }

    fn meets(&mut self, fence: Fence) -> bool {
        if !self.seen.contains(&fence) {
            self.seen.push(fence);
        }
        self.ignored == Some(fence)
    }
}

impl DiskQueue for FencelessDisk {
    fn capacity(&self) -> u64 {
        self.disk.capacity()
    }

    fn block_size(&self) -> usize {
        self.disk.block_size()
    }

    fn physical_block_size(&self) -> usize {
        self.disk.physical_block_size()
    }

    fn depth(&self) -> usize {
        self.disk.depth()
    }

    fn submit_with(
        &mut self,
        token: u64,
        operation: Operation,
        priority: Priority,
    ) -> Result<(), SubmitError> {
        match operation {
            Operation::Write { offset, length, buffer, durable } => {
                self.last = offset;
                let fence = match offset {
                    ..16384 => Fence::Superblock,
                    _ => Fence::Record,
                };
                let durable = durable && !self.meets(fence);
                self.disk.submit_with(token, Operation::Write { offset, length, buffer, durable }, priority)
            }
            Operation::Flush => {
                let fence = match self.last {
                    _ if self.formats => Fence::FormatFlush,
                    ..VOID => Fence::CheckpointFlush,
                    _ => Fence::ZeroFlush,
                };
                if self.meets(fence) {
                    self.swallowed.push(Completion::of(token, Operation::Flush, Ok(())));
                    return Ok(());
                }
                self.disk.submit_with(token, Operation::Flush, priority)
            }
            other => self.disk.submit_with(token, other, priority),
        }
    }

    fn notify(&mut self) -> std::io::Result<()> {
        self.disk.notify()
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

/// The areas as seen from outside: name to user, blocks, and the byte that fills each block.
type Model = BTreeMap<String, (u32, Vec<u8>)>;

/// The state that is known when the power fails.
#[derive(Default)]
struct Known {
    formatted: bool,
    /// What was acknowledged.
    now: Model,
    /// What the change under way would make of it.
    next: Option<Model>,
}

fn put(disk: &mut FencelessDisk, block: u64, byte: u8) -> Option<()> {
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
fn step(volume: &mut Volume, disk: &mut FencelessDisk, known: &mut Known, random: &mut Random) -> Option<()> {
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
            // The owner writes to its area. It fills blocks, so that a block with another area's
            // data is detected.
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
        Err(VolumeError::Full { requested, free: reported }) => {
            assert_eq!(
                (reported, requested > free * BLOCK),
                (free * BLOCK, true),
                "the free room differs from the report"
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

    /// Lives until boundary `off`; what the medium is then, what is known, what fences were met,
    /// and whether it lived to the end.
    fn live(&self, off: u64) -> (Media, Known, Vec<Fence>, bool) {
        let tear = [8, 64, 512][self.seed as usize % 3];
        let mut options = Options::new(CAPACITY as usize);
        options.tear = tear;
        options.block_size = if self.seed.is_multiple_of(2) { 512 } else { 4096 };
        let media = Media::new(options, Random::new(self.seed));
        let mut seen = Vec::new();
        // An earlier owner's bytes are everywhere.
        let mut disk = FencelessDisk::new(media.open(), None);
        for block in 0..CAPACITY / BLOCK {
            put(&mut disk, block, STALE).expect("there is power");
        }
        let begin = media.boundaries();
        media.power_off_at(begin + off);
        let mut known = Known::default();
        let mut random = Random::new(self.seed ^ 0x5eed);
        let mut run = || {
            let mut disk = FencelessDisk::new(media.open(), self.ignored);
            disk.formats = true;
            let formatted = Volume::format(&mut disk, FormatOptions { identity: 77, half_bytes: Some(HALF) });
            seen.append(&mut disk.seen);
            formatted.ok()?;
            known.formatted = true;
            for _ in 0..self.lives {
                let mut disk = FencelessDisk::new(media.open(), self.ignored);
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

    /// Every boundary, and the media that each may leave.
    fn enumerate(&self, draws: u64) -> Result<u64, String> {
        let mut random = Random::new(self.seed ^ 0xc0ffee);
        let mut judged = 0;
        for off in 1.. {
            let (media, known, _, done) = self.live(off);
            let few = if seeds::is_soak() { 600 } else { 2 + draws };
            judged += outcomes(&media, (few, draws), &mut random, &mut |fork, random| {
                judge(fork, &known)?;
                if random.chance(30) { nest(fork, &known, 2, random) } else { Ok(()) }
            })
            .map_err(|error| format!("seed {}, boundary {off}: {error}", self.seed))?;
            if done {
                return Ok(judged);
            }
        }
        Ok(judged)
    }
}

/// Media that a power loss now may leave: all of them if they are no more than `few`, else the
/// poorest, the richest and as many drawn ones.
fn outcomes(
    media: &Media,
    (few, draws): (u64, u64),
    random: &mut Random,
    judge: &mut dyn FnMut(&Media, &mut Random) -> Result<(), String>,
) -> Result<u64, String> {
    let mut chooser = ExhaustiveChooser::default();
    media.fork(Random::new(0)).crash_with(|choices| chooser.choose(choices));
    if chooser.combinations() <= few {
        chooser = ExhaustiveChooser::default();
        let mut judged = 0;
        loop {
            let fork = media.fork(Random::new(judged));
            fork.crash_with(|choices| chooser.choose(choices));
            seeds::explored(1);
            judged += 1;
            judge(&fork, random).map_err(|error| format!("outcome {judged} of all: {error}"))?;
            // Torn sectors have outcomes that others have not: there may be more than were counted.
            if !chooser.advance() || judged > 4 * few {
                return Ok(judged);
            }
        }
    }
    for draw in 0..draws + 2 {
        let fork = media.fork(Random::new(draw));
        fork.crash(match draw {
            0 => Crash::Nothing,
            1 => Crash::Everything,
            draw => Crash::Random(Random::new(random.word() ^ draw)),
        });
        seeds::explored(1);
        judge(&fork, random).map_err(|error| format!("draw {draw}: {error}"))?;
    }
    Ok(draws + 2)
}

/// The power fails at every boundary of the opening that follows a crash, and of what `judge` does
/// then. `depth` is the number of crashes in a row.
fn nest(media: &Media, known: &Known, depth: u64, random: &mut Random) -> Result<(), String> {
    for off in 1.. {
        let fork = media.fork(random.fork());
        fork.power_off_at(fork.boundaries() + off);
        let opened = match Volume::open(&mut fork.open()) {
            Ok(_) => true,
            Err(OpenError::NotFormatted | OpenError::Damaged { .. }) if !known.formatted => return Ok(()),
            Err(OpenError::Failed(_)) => false,
            Err(error) => return Err(format!("does not open again: {error}")),
        };
        outcomes(&fork, (3, 1), random, &mut |fork, random| {
            judge(fork, known)?;
            if depth > 1 && random.chance(60) { nest(fork, known, depth - 1, random) } else { Ok(()) }
        })
        .map_err(|error| format!("depth {depth}, boundary {off} of opening: {error}"))?;
        if opened {
            break;
        }
    }
    Ok(())
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
                // A write or a trim under way may have replaced any part of its block with its new
                // content.
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
        let image = media.image();
        for block in 0..free / BLOCK {
            let at = (block_of(&volume, "z", block) * BLOCK) as usize;
            if let Some(found) = image[at..at + BLOCK as usize].iter().find(|byte| **byte != 0) {
                return Err(format!("block {block} of a new area holds {found:#x}, which is another's"));
            }
        }
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
    let budget = Budget { seeds: 8, seconds: 4 };
    seeds::run("it crash::power_loss_at_every_boundary", &[1, 2, 3, 4, 5, 6], budget, |seed| {
        let judged = Life::new(seed).enumerate(4).expect("the promise");
        assert!(judged > 500, "only {judged} media");
    });
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

/// Whether a format over an old volume, cut short anywhere, shows anything but the old volume, or
/// none, or the new one.
fn format_shows_an_older_state(ignored: Option<Fence>) -> bool {
    let (old, known, _, _) = Life { steps: 20, ..Life::new(2) }.live(u64::MAX / 2);
    let fits = |volume: &Volume| {
        volume.areas().count() == known.now.len()
            && volume.areas().all(|area| {
                known.now.get(&area.name).is_some_and(|(_, bytes)| bytes.len() as u64 * BLOCK == area.size())
            })
    };
    (1..20).flat_map(|off| (0..30).map(move |draw| (off, draw))).any(|(off, draw)| {
        let media = old.fork(Random::new(draw));
        media.power_off_at(media.boundaries() + off);
        let mut disk = FencelessDisk::new(media.open(), ignored);
        disk.formats = true;
        let done = Volume::format(&mut disk, FormatOptions { identity: 78, half_bytes: Some(HALF) }).is_ok();
        media.crash(Crash::Random(Random::new(draw ^ off << 8)));
        match Volume::open(&mut media.open()) {
            Ok(volume) => volume.areas().count() > 0 && (done || !fits(&volume)),
            Err(OpenError::NotFormatted | OpenError::Damaged { .. }) => done,
            Err(_) => true,
        }
    })
}

#[test]
fn a_format_cut_short_never_shows_an_older_state() {
    assert!(!format_shows_an_older_state(None));
}

#[test]
fn ignoring_any_fence_is_noticed() {
    let (_, _, seen, _) = Life::new(1).live(u64::MAX / 2);
    let listed: Vec<Fence> = SITES.iter().flat_map(|(.., fences)| fences.iter().copied()).collect();
    for fence in &listed {
        assert!(seen.contains(fence), "{fence:?} never happened");
        let noticed = is_noticed(Some(*fence)) || format_shows_an_older_state(Some(*fence));
        assert!(noticed, "no crash reveals the lack of {fence:?}");
    }
    assert!(
        seen.iter().all(|fence| listed.contains(fence)),
        "{seen:?}: some are made by no line of the table"
    );
    assert!(!is_noticed(None), "the gate cries wolf");
}

#[test]
fn every_line_that_makes_something_durable_is_in_the_table() {
    let mut sites = SITES.iter();
    let mut files: Vec<_> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))
        .expect("the source")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    files.sort();
    for path in files {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("the source");
        for line in
            text.lines().map(str::trim).filter(|line| !line.starts_with("//") && !line.contains("fn "))
        {
            let marks =
                ["Operation::Flush)", "flush(disk)", "write_superblocks(", "bytes, true)", "durable: true"];
            if marks.iter().any(|mark| line.contains(mark)) {
                let fits = sites.next().is_some_and(|(file, text, _)| *file == name && line.contains(text));
                assert!(fits, "src/{name}: `{line}` is not in the table of the gate, or not in its place");
            }
        }
    }
    assert!(sites.next().is_none(), "the table names lines that no longer exist");
}

#[test]
fn a_failed_write_of_metadata_stops_the_volume_and_keeps_its_state() {
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
                    // A failed write of zeros has lost no data.
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

/// What opening a medium shows: the areas with their sizes, or why not.
fn shown(media: &Media) -> Result<Vec<(String, u64)>, OpenError> {
    let volume = Volume::open(&mut media.open())?;
    let mut areas: Vec<_> = volume.areas().map(|area| (area.name.clone(), area.size())).collect();
    areas.sort();
    Ok(areas)
}

fn sizes(model: &Model) -> Vec<(String, u64)> {
    model.iter().map(|(name, (_, bytes))| (name.clone(), bytes.len() as u64 * BLOCK)).collect()
}

/// Bits rot anywhere in the metadata: the volume is unchanged, or refuses to open and reports the
/// place. It shows the state before the last change in one case alone: the very last record rotted,
/// and nothing on the medium proves that it was there (rule 4 of the format).
#[test]
fn rotten_metadata_is_refused_or_harmless() {
    let mut outcomes = [0u32; 3];
    for seed in 1..=4 {
        let media = Media::new(Options::new(CAPACITY as usize), Random::new(seed));
        let mut disk = FencelessDisk::new(media.open(), None);
        let mut random = Random::new(seed ^ 0x5eed);
        Volume::format(&mut disk, FormatOptions { identity: 9, half_bytes: Some(HALF) }).expect("room");
        let mut volume = Volume::open(&mut disk).expect("just formatted");
        let (mut known, mut before, mut last) = (Known::default(), Model::new(), 0);
        // Until the journal holds two records and more of this generation: the last change is one
        // of them.
        for _ in 0..40 + seed * 3 {
            let (now, place) = (known.now.clone(), disk.last);
            step(&mut volume, &mut disk, &mut known, &mut random).expect("power");
            let journal = HALVES_START..VOID;
            if disk.last != place && journal.contains(&disk.last) && sizes(&now) != sizes(&known.now) {
                (before, last) = (now, disk.last);
            }
        }
        drop(volume);
        media.crash(Crash::Everything);
        for byte in (0..VOID as usize).step_by(23) {
            let fork = media.fork(Random::new(1));
            fork.rot(byte, (byte % 8) as u8);
            let in_last = (last..last + BLOCK).contains(&(byte as u64));
            match shown(&fork) {
                Ok(areas) if areas == sizes(&known.now) => outcomes[0] += 1,
                Ok(areas) => {
                    assert!(
                        in_last && areas == sizes(&before),
                        "seed {seed}: byte {byte}, the last record is at {last}"
                    );
                    outcomes[1] += 1;
                }
                Err(OpenError::Damaged { offset, .. }) => {
                    // It names a place in the half that rotted, not somewhere else.
                    assert!(offset < VOID, "{offset}");
                    outcomes[2] += 1;
                }
                Err(other) => panic!("byte {byte}: {other}"),
            }
        }
    }
    assert!(outcomes.iter().all(|count| *count > 20), "harmless, last record, refused: {outcomes:?}");
}

/// Data of a deleted area, and earlier data of the device, is not readable by the next holder of
/// the blocks, also where an area grows.
#[test]
fn no_area_ever_reads_bytes_of_another() {
    let media = Media::new(Options::new(CAPACITY as usize), Random::new(9));
    let mut disk = FencelessDisk::new(media.open(), None);
    for block in 0..CAPACITY / BLOCK {
        put(&mut disk, block, STALE).expect("there is power");
    }
    Volume::format(&mut disk, FormatOptions { identity: 5, half_bytes: Some(HALF) }).expect("large enough");
    let mut volume = Volume::open(&mut disk).expect("formatted");
    let all = volume.free();
    let is_zeros = |volume: &Volume, media: &Media, name: &str, from: u64, to: u64| {
        (from..to).all(|index| {
            let at = (block_of(volume, name, index) * BLOCK) as usize;
            media.image()[at..at + BLOCK as usize].iter().all(|byte| *byte == 0)
        })
    };
    volume.create(&mut disk, "first", 7, all).expect("room");
    assert!(is_zeros(&volume, &media, "first", 0, all / BLOCK), "what lay on the device");
    let blocks: Vec<u64> = (0..all / BLOCK).map(|index| block_of(&volume, "first", index)).collect();
    for block in blocks {
        put(&mut disk, block, 0x42).expect("there is power");
    }
    volume.delete(&mut disk, "first").expect("it is there");
    volume.create(&mut disk, "second", 8, all / BLOCK / 2 * BLOCK).expect("room");
    assert!(is_zeros(&volume, &media, "second", 0, all / BLOCK / 2), "what the first wrote");
    volume.resize(&mut disk, "second", all).expect("room");
    assert!(is_zeros(&volume, &media, "second", 0, all / BLOCK), "what it got by growing");
}
