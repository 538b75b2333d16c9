//! Changes of the media themselves: one grows, one is added, one leaves.
//!
//! 1. Each change is one commit of the home: its superblock has the sizes and the
//!    [table](super::media_table) of the media, and its tree has the free runs. A crash leaves the
//!    media of before or those of after.
//! 2. What the commit needs is made durable before it: the longer file of a medium that grows, and
//!    the superblocks of one that is added. What it makes worthless is removed after it, by the
//!    caller: the file of a medium that has left.
//! 3. A medium leaves in two steps. While it is *leaving*, it gets no new data as long as another
//!    one has room, and the mover takes its data to the others. When nothing is left on it,
//!    [`Pool::remove_medium`] takes it out of the table.
//! 4. The superblocks of another medium are written once, when it joins. How large it is later, the
//!    table says.

use sietch_disk::DiskQueue;

use super::error::{MediaError, OpenError};
use super::limits::{FIRST_BLOCK, MAX_MEDIA, MIN_MEDIUM};
use super::media_table::{FORMATTED, Listed, MediaTable};
use super::medium::{Class, Medium, Member};
use super::open::identify;
use super::superblock::{Superblock, check_suitable, newest};
use super::{Pool, Root, Run};
use crate::error::Fault;

impl<D: DiskQueue> Pool<D> {
    /// The slots of the media, in the order in which they are given to [`Pool::open`].
    pub fn slots(&self) -> Vec<usize> {
        (0..self.media.len()).filter(|slot| self.media[*slot].blocks > 0).collect()
    }

    /// Blocks of the medium in a slot; 0 if it has none.
    pub fn blocks_of(&self, slot: usize) -> u32 {
        self.media.get(slot).map_or(0, |medium| medium.blocks)
    }

    /// From now on, the medium in a slot gets no new data as long as another one has room, and the
    /// mover takes its data away. It is not stored. The home stays: it has the tree.
    pub fn set_leaving(&mut self, slot: usize) {
        if slot > 0 {
            self.data.set_leaving(slot);
        }
    }

    /// Makes the medium in a slot larger: it has so many blocks from now on, which are there
    /// already.
    ///
    /// # Errors
    /// See [`MediaError`].
    pub fn grow_medium(&mut self, slot: usize, blocks: u32) -> Result<Root, MediaError> {
        self.check_unchanged()?;
        let old = self.blocks_of(slot);
        let Some(medium) = self.media.get_mut(slot).filter(|medium| medium.blocks > 0) else {
            return Err(MediaError::Unknown { slot });
        };
        let name = medium.name.clone();
        if blocks <= old {
            return Err(MediaError::NotLarger { medium: name, blocks, now: old });
        }
        let capacity = medium.capacity();
        if blocks > capacity {
            return Err(MediaError::Capacity { medium: name, blocks, capacity });
        }
        if slot > 0 && !self.has_node_room(true)? {
            return Err(self.full(self.tree.blocks_per_change()).into());
        }
        let more = blocks - old;
        self.media[slot].blocks = blocks;
        if slot == 0 {
            self.superblock.blocks = blocks;
        } else {
            let mut table = self.table();
            table.set(slot, table.get(slot).map(|listed| Listed { blocks, ..listed }));
            self.superblock.table = Some(table);
        }
        // At most MAX_MEDIA slots.
        self.data.enlarge(Run { medium: slot as u8, start: old, blocks: more });
        self.count_total();
        Ok(self.commit(self.superblock.root.counters)?)
    }

    /// Adds a medium, whose content is lost, under a random key. Returns its slot.
    ///
    /// # Errors
    /// See [`MediaError`].
    pub fn add_medium(&mut self, member: Member<D>, key: u64) -> Result<usize, MediaError> {
        self.check_unchanged()?;
        let mut table = self.table();
        let slot = table.empty_slot().ok_or(MediaError::Count { most: MAX_MEDIA })?;
        check_suitable(&member.name, &member.disk, MIN_MEDIUM)?;
        let mut medium = Medium::new(member);
        if !self.has_node_room(true)? {
            return Err(self.full(self.tree.blocks_per_change()).into());
        }
        let (blocks, class) = (medium.blocks, medium.class);
        table.set(slot, Some(Listed { key, blocks, class }));
        let all: Vec<u32> = (0..FIRST_BLOCK).collect();
        // At most MAX_MEDIA slots.
        let (index, media) = (slot as u8, table.count());
        let root = Root { generation: key, ..self.superblock.root };
        let own = Superblock { blocks, index, media, class, root, table: None, ..self.superblock };
        medium.write_durable(&all, &own.write())?;
        self.put(slot, medium);
        self.superblock.table = Some(table);
        self.superblock.media = media;
        let run = Run { medium: index, start: FIRST_BLOCK, blocks: blocks - FIRST_BLOCK };
        self.data.enlarge(run);
        self.count_total();
        self.commit(self.superblock.root.counters)?;
        Ok(slot)
    }

    /// Takes the medium in a slot out of the pool, and gives it back. It must not have data.
    ///
    /// # Errors
    /// See [`MediaError`].
    pub fn remove_medium(&mut self, slot: usize) -> Result<Option<Member<D>>, MediaError> {
        self.check_unchanged()?;
        let used = self.usage().get(slot).filter(|found| found.blocks > 0).map(|found| found.used());
        let (Some(used), Some(medium)) = (used, self.media.get(slot)) else {
            return Err(MediaError::Unknown { slot });
        };
        if slot == 0 {
            return Err(MediaError::Home { medium: medium.name.clone() });
        }
        if used > 0 {
            return Err(MediaError::InUse { medium: medium.name.clone(), blocks: used });
        }
        if !self.has_node_room(true)? {
            return Err(self.full(self.tree.blocks_per_change()).into());
        }
        let mut table = self.table();
        table.set(slot, None);
        self.superblock.media = table.count();
        self.superblock.table = Some(table);
        self.data.close(slot);
        let empty = Medium::empty(slot, self.media[0].class);
        let medium = std::mem::replace(&mut self.media[slot], empty);
        self.count_total();
        self.commit(self.superblock.root.counters)?;
        Ok(medium.into_member())
    }

    /// Sets the total from the sizes of the media, whatever a superblock said of it.
    fn count_total(&mut self) {
        let blocks = self.media.iter().map(|medium| u64::from(medium.blocks.saturating_sub(FIRST_BLOCK)));
        self.superblock.root.total = blocks.sum();
    }

    /// The table, also where the pool has none yet.
    fn table(&self) -> MediaTable {
        self.superblock.table.unwrap_or_else(|| {
            let mut table = MediaTable::default();
            for (slot, medium) in self.media.iter().enumerate().skip(1) {
                let Medium { blocks, class, .. } = *medium;
                table.set(slot, Some(Listed { key: FORMATTED, blocks, class }));
            }
            table
        })
    }

    fn put(&mut self, slot: usize, medium: Medium<D>) {
        let class = medium.class;
        while self.media.len() <= slot {
            let empty = Medium::empty(self.media.len(), self.media[0].class);
            self.media.push(empty);
        }
        self.media[slot] = medium;
        self.data.open(slot, class);
    }

    /// The media change by a commit of their own.
    fn check_unchanged(&self) -> Result<(), Fault> {
        self.check_going()?;
        if self.tree.dirty() > 0 {
            let cause = "the media of a pool with changes cannot be changed; commit first".to_owned();
            return Err(Fault::Refused { medium: self.home_name(), cause });
        }
        Ok(())
    }
}

/// What a medium is to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belonging {
    /// It is a medium of the pool: its place, in the order in which they are given to
    /// [`Pool::open`].
    Member(usize),
    /// It has left the pool, or its addition was cut short.
    Former,
    /// It never had data of this pool.
    Foreign,
}

/// What `other` is to the pool of `home`.
///
/// # Errors
/// The home holds no pool, or a medium cannot be read.
pub fn belonging<D: DiskQueue>(home: Member<D>, other: Member<D>) -> Result<Belonging, OpenError> {
    let superblock = newest(&mut Medium::new(home))?;
    let found = match newest(&mut Medium::new(other)) {
        Ok(found) if found.identity == superblock.identity => found,
        // Another pool's; or it was made, and not more.
        Ok(_) | Err(OpenError::Blank { .. } | OpenError::Superblocks { .. }) => {
            return Ok(Belonging::Foreign);
        }
        Err(error) => return Err(error),
    };
    let slot = usize::from(found.index);
    if slot == 0 || superblock.key_of(slot) != Some(found.root.generation) {
        return Ok(Belonging::Former);
    }
    let place = superblock.slots().iter().position(|other| *other == slot);
    Ok(place.map_or(Belonging::Former, |at| Belonging::Member(at + 1)))
}

/// Class and blocks of each medium, as the superblocks of the pool say them. The media must be
/// those of the pool, the home first.
///
/// # Errors
/// As of [`Pool::open`].
pub fn recorded_media<D: DiskQueue>(members: Vec<Member<D>>) -> Result<Vec<(Class, u32)>, OpenError> {
    let (media, _) = identify(members)?;
    let in_use = media.iter().filter(|medium| medium.blocks > 0);
    Ok(in_use.map(|medium| (medium.class, medium.blocks)).collect())
}
