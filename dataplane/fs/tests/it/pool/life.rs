//! A random life of a pool, what is known of it, and how it is judged.

use std::collections::BTreeMap;

use sietch_disk::{BLOCK, Buffer, DiskQueue};
use sietch_fs::name::NameKey;
use sietch_fs::pool::{
    Class, Counters, FormatError, FormatOptions, Member, OpenError, Pool, Run, check, format,
};
use sietch_fs::{Fault, Key};
use sietch_sim::Random;

use super::world::{Phase, World};

/// A violation of the promise, in words.
pub(super) type Verdict = Result<(), String>;

/// The items of a pool. Those of [`KIND_RUN`] name a run and the number that fills it.
pub(super) type Items = BTreeMap<Key, Vec<u8>>;

pub(super) const KIND_RUN: u8 = 200;

/// What a crash must keep.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// A format was acknowledged.
    pub(super) formatted: bool,
    /// What was committed last.
    pub(super) committed: Items,
    /// What was being committed.
    pub(super) pending: Option<Items>,
}

pub(super) fn options(identity: u128) -> FormatOptions {
    FormatOptions { identity, name_key: NameKey([5; 16]) }
}

pub(super) fn run_value(run: Run, number: u64) -> Vec<u8> {
    let mut value = vec![run.medium];
    value.extend(run.start.to_le_bytes());
    value.extend(run.blocks.to_le_bytes());
    value.extend(number.to_le_bytes());
    value
}

pub(super) fn value_run(value: &[u8]) -> (Run, u64) {
    let word = |at: usize| u32::from_le_bytes(value[at..at + 4].try_into().expect("four bytes"));
    let number = u64::from_le_bytes(value[9..17].try_into().expect("eight bytes"));
    (Run { medium: value[0], start: word(1), blocks: word(5) }, number)
}

/// Blocks that a number fills.
pub(super) fn filled(blocks: u32, number: u64) -> Buffer {
    let mut buffer = Buffer::new(blocks as usize * BLOCK);
    for (at, word) in buffer.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(number << 20 | at as u64).to_le_bytes());
    }
    buffer
}

/// Formats; `None`: the power was lost.
pub(super) fn format_world(world: &World, identity: u128, known: &mut Known) -> Option<()> {
    world.set_phase(Phase::Format);
    // Until it is acknowledged there is the old pool, or none, or the new one.
    (known.formatted, known.pending) = (false, Some(Items::new()));
    match format(&mut world.members(), &options(identity)) {
        Ok(()) => *known = Known { formatted: true, ..Known::default() },
        Err(FormatError::Fault(_)) if world.is_off() => return None,
        Err(error) => panic!("{error}"),
    }
    Some(())
}

/// Opens; `None`: the power was lost.
pub(super) fn open_world(world: &World) -> Option<Pool<super::world::Device>> {
    world.set_phase(Phase::Open);
    match Pool::open_with(world.members(), 20) {
        Ok(mut pool) => {
            pool.readers_at(u64::MAX);
            Some(pool)
        }
        Err(_) if world.is_off() => None,
        Err(error) => panic!("{error}"),
    }
}

/// Makes random changes and commits; `None`: the power was lost.
pub(super) fn live<D: DiskQueue>(
    world: &World,
    pool: &mut Pool<D>,
    commits: u64,
    random: &mut Random,
    known: &mut Known,
) -> Option<()> {
    world.set_phase(Phase::Commit);
    for _ in 0..commits {
        let mut items = known.committed.clone();
        let steps = random.between(1, 14);
        for step in 0..steps {
            match change(pool, &mut items, random, pool_number(pool, step)) {
                Ok(()) | Err(Fault::Full { .. }) => {}
                Err(_) if world.is_off() => return None,
                Err(fault) => panic!("{fault}"),
            }
        }
        known.pending = Some(items.clone());
        let counters = Counters { inodes: items.len() as u64, next_inode: pool_number(pool, 0) };
        match pool.commit(counters) {
            Ok(_) => (known.committed, known.pending) = (items, None),
            Err(_) if world.is_off() => return None,
            Err(fault) => panic!("{fault}"),
        }
    }
    Some(())
}

fn pool_number<D: DiskQueue>(pool: &Pool<D>, step: u64) -> u64 {
    pool.root().generation * 100 + step
}

fn change<D: DiskQueue>(
    pool: &mut Pool<D>,
    items: &mut Items,
    random: &mut Random,
    number: u64,
) -> Result<(), Fault> {
    let key = Key::new(random.between(1, 4), 1, random.below(60));
    match random.below(10) {
        0..=3 => {
            let mut value = vec![0; random.between(0, 1200) as usize];
            random.fill(&mut value);
            pool.insert(key, &value)?;
            items.insert(key, value);
        }
        4..=5 => assert_eq!(pool.remove(key)?, items.remove(&key).is_some(), "{key}"),
        6..=8 => {
            let class = *random.pick(&[Class::Nvm, Class::Ssd, Class::Hdd]);
            let run = pool.allocate(class, random.between(1, 4) as u32)?;
            pool.write(run, filled(run.blocks, number))?;
            let key = Key::new(random.between(1, 4), KIND_RUN, number);
            let value = run_value(run, number);
            match pool.insert(key, &value) {
                Ok(()) => drop(items.insert(key, value)),
                Err(Fault::Full { .. }) => pool.free(run)?,
                Err(fault) => return Err(fault),
            }
        }
        _ => {
            let runs: Vec<Key> = items.keys().copied().filter(|key| key.kind == KIND_RUN).collect();
            if !runs.is_empty() {
                let key = *random.pick(&runs);
                let (run, number) = value_run(&items[&key]);
                assert!(pool.read(run)?[..] == filled(run.blocks, number)[..], "queued data read wrong");
                assert!(pool.remove(key)?);
                items.remove(&key);
                pool.free(run)?;
            }
        }
    }
    Ok(())
}

/// All items of the file system.
pub(super) fn read_all<D: DiskQueue>(pool: &mut Pool<D>) -> Result<Items, Fault> {
    let (mut items, mut from) = (Items::new(), Key::new(1, 0, 0));
    while let Some((key, value)) = pool.next(from)? {
        items.insert(key, value);
        from = Key { offset: key.offset + 1, ..key };
    }
    Ok(items)
}

/// The pool is whole, and each run has its data.
pub(super) fn judge_pool<D: DiskQueue>(pool: &mut Pool<D>, items: &Items) -> Verdict {
    for (key, value) in items.iter().filter(|(key, _)| key.kind == KIND_RUN) {
        let (run, number) = value_run(value);
        let data = pool.read(run).map_err(|e| e.to_string())?;
        if data[..] != filled(run.blocks, number)[..] {
            return Err(format!("{key}: {run:?} does not have its data"));
        }
    }
    let found = check(pool, &mut |key, value, runs| {
        if key.kind == KIND_RUN {
            runs.push(value_run(value).0);
        }
        Ok(())
    })
    .map_err(|e| e.to_string())?;
    let (free, total) = pool.free_blocks();
    if !found.findings.is_empty() || found.free != free || found.free + found.used + found.chunks != total {
        return Err(format!("{found:#?}"));
    }
    Ok(())
}

/// Opens what a crash has left and judges it. What it shows is then what is committed.
pub(super) fn judge<D: DiskQueue>(members: Vec<Member<D>>, known: &mut Known) -> Verdict {
    let mut pool = match Pool::open_with(members, 20) {
        Ok(pool) => pool,
        Err(OpenError::Blank { .. }) if !known.formatted => return Ok(()),
        // A format erases before it writes, so a torn superblock is one that it was writing.
        Err(OpenError::Superblocks { .. }) if !known.formatted => return Ok(()),
        Err(error) => return Err(format!("does not open: {error}")),
    };
    let items = read_all(&mut pool).map_err(|e| e.to_string())?;
    if items != known.committed && known.pending.as_ref() != Some(&items) {
        return Err(format!("shows {} items that were never committed together", items.len()));
    }
    let counters = pool.root().counters;
    if counters.inodes != items.len() as u64 {
        return Err(format!("{counters:?} with {} items", items.len()));
    }
    judge_pool(&mut pool, &items)?;
    *known = Known { formatted: true, committed: items, pending: None };
    // Another life.
    pool.readers_at(u64::MAX);
    let key = Key::new(9, 9, 9);
    pool.insert(key, b"after").map_err(|e| e.to_string())?;
    pool.commit(counters).map_err(|e| e.to_string())?;
    pool.remove(key).map_err(|e| e.to_string())?;
    let next_inode = counters.next_inode + 1;
    pool.commit(Counters { next_inode, ..counters }).map_err(|e| e.to_string())?;
    judge_pool(&mut pool, &known.committed)
}
