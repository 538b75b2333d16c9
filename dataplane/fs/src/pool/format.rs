//! Making a pool.
//!
//! 1. The home's superblocks are erased, durably, those of the older generation first. From here on
//!    it holds no pool.
//! 2. Every other medium gets its superblocks, and the home its first tree: a root with an item for
//!    each free run and one for the first chunk of node blocks.
//! 3. When all of that is durable, the home gets its superblock. Before that it is blank.

use std::io;
use std::time::Duration;

use sietch_disk::{Buffer, Completion, DiskQueue, Operation, Part, Priority, SubmitError};

use super::error::FormatError;
use super::limits::{FIRST_BLOCK, MAX_MEDIA, MIN_HOME, MIN_MEDIUM, first_chunk};
use super::medium::{Medium, Member};
use super::own_items::{chunk_item, free_item};
use super::superblock::{Superblock, check_suitable, copies, newest};
use super::{Counters, Root, Run};
use crate::limits::BLOCK;
use crate::name::NameKey;
use crate::tree::{Node, Pointer, seed};

/// What a new pool is.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Distinguishes it from every other pool: random.
    pub identity: u128,
    /// The key of its name hashes: random.
    pub name_key: NameKey,
}

/// Generation of the first superblock. That of generation 0 stays blank.
const FIRST_GENERATION: u64 = 1;

/// Makes a pool of the media, the home first. What they held is gone.
///
/// # Errors
/// See [`FormatError`]. After a [`FormatError::Fault`] the home holds no pool; after any other,
/// nothing has changed.
pub fn format<D: DiskQueue>(members: &mut [Member<D>], options: &FormatOptions) -> Result<(), FormatError> {
    let count = members.len();
    if count == 0 || count > MAX_MEDIA {
        return Err(FormatError::Count { count, most: MAX_MEDIA });
    }
    for (index, member) in members.iter().enumerate() {
        let needed = if index == 0 { MIN_HOME } else { MIN_MEDIUM };
        check_suitable(&member.name, &member.disk, needed)?;
    }
    let mut media: Vec<Medium<Reborrowed<'_, D>>> = members
        .iter_mut()
        .map(|member| {
            Medium::new(Member {
                name: member.name.clone(),
                class: member.class,
                disk: Reborrowed(&mut member.disk),
            })
        })
        .collect();
    make(&mut media, options)
}

fn make<D: DiskQueue>(media: &mut [Medium<D>], options: &FormatOptions) -> Result<(), FormatError> {
    let all: Vec<u32> = (0..FIRST_BLOCK).collect();
    let counts: Vec<u32> = media.iter().map(|medium| medium.blocks).collect();
    let classes: Vec<_> = media.iter().map(|medium| medium.class).collect();
    let Some((home, others)) = media.split_first_mut() else { return Ok(()) };
    // The newest copies last: what is cut short shows the old pool as it was, or none.
    let generation = newest(home).map_or(0, |superblock| superblock.root.generation);
    for generation in [generation.wrapping_add(1), generation] {
        home.write_durable(&copies(generation), &Buffer::new(BLOCK))?;
    }

    let chunk = first_chunk(home.blocks);
    let mut node = Node::new(0, FIRST_GENERATION);
    let mut free = 0;
    // The items are in the order of their keys: free runs by medium, then the chunk.
    for (index, blocks) in counts.iter().enumerate() {
        let start = if index == 0 { FIRST_BLOCK + chunk } else { FIRST_BLOCK };
        // At most as many media as a byte counts.
        let run = Run { medium: index as u8, start, blocks: blocks - start };
        free += u64::from(run.blocks);
        node.insert(index, free_item(run.medium, run.start), &run.blocks.to_le_bytes());
    }
    node.insert(counts.len(), chunk_item(FIRST_BLOCK), &chunk.to_le_bytes());
    let checksum = node.seal(seed(options.identity), FIRST_BLOCK);
    let part = Part { buffer: node.take_bytes(), length: BLOCK };
    home.write_nodes(0, Run { medium: 0, start: FIRST_BLOCK, blocks: 1 }, vec![part])?;
    home.drain()?;
    home.flush()?;

    let superblock = |index: usize| Superblock {
        identity: options.identity,
        blocks: counts[index],
        // At most as many media as a byte counts.
        index: index as u8,
        media: counts.len() as u8,
        class: classes[index],
        name_key: options.name_key,
        root: Root {
            identity: options.identity,
            generation: FIRST_GENERATION,
            pointer: Pointer { block: FIRST_BLOCK, generation: FIRST_GENERATION, checksum },
            level: 0,
            counters: Counters::default(),
            free,
            total: counts.iter().map(|blocks| u64::from(blocks - FIRST_BLOCK)).sum(),
        },
        table: None,
    };
    for (index, medium) in others.iter_mut().enumerate() {
        medium.write_durable(&all, &superblock(index + 1).write())?;
    }
    home.write_durable(&copies(FIRST_GENERATION), &superblock(0).write())?;
    Ok(())
}

/// A queue whose owner wants it back.
struct Reborrowed<'a, D>(&'a mut D);

impl<D: DiskQueue> DiskQueue for Reborrowed<'_, D> {
    fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    fn block_size(&self) -> usize {
        self.0.block_size()
    }

    fn physical_block_size(&self) -> usize {
        self.0.physical_block_size()
    }

    fn depth(&self) -> usize {
        self.0.depth()
    }

    fn submit_with(&mut self, token: u64, operation: Operation, by: Priority) -> Result<(), SubmitError> {
        self.0.submit_with(token, operation, by)
    }

    fn notify(&mut self) -> io::Result<()> {
        self.0.notify()
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        self.0.complete(out)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.0.wait(timeout)
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
}
