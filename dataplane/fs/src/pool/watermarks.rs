//! How full a medium may be.

use super::medium::Class;

/// Parts of a medium in thousandths, of what is behind its superblocks.
///
/// | mark | effect |
/// | --- | --- |
/// | low | the mover stops taking data away, and data that are read often may come back |
/// | high | the mover begins to take data away, and brings none |
/// | hard | new data go to another medium, if one has room below its own mark |
///
/// Between low and high nothing moves, so that a medium near one mark is not worked on all the
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    low: u16,
    high: u16,
    hard: u16,
}

/// The whole.
const WHOLE: u64 = 1000;
/// The part of a medium below the high mark that counts as being at it.
const NEAR: u64 = 50;

impl Default for Watermarks {
    /// 700, 850 and 950. On the home, the last twentieth is for the tree, which is nowhere else.
    fn default() -> Self {
        Self { low: 700, high: 850, hard: 950 }
    }
}

impl Watermarks {
    /// Marks in thousandths; `None` unless each one is below the next and the last is at most 1000.
    pub fn new(low: u16, high: u16, hard: u16) -> Option<Self> {
        (low < high && high < hard && u64::from(hard) <= WHOLE).then_some(Self { low, high, hard })
    }

    fn part(mark: u16, blocks: u64) -> u64 {
        blocks / WHOLE * u64::from(mark) + blocks % WHOLE * u64::from(mark) / WHOLE
    }

    /// Blocks in use at the low mark, of a medium with `blocks`.
    pub fn low(self, blocks: u64) -> u64 {
        Self::part(self.low, blocks)
    }

    /// Blocks in use at the high mark.
    pub fn high(self, blocks: u64) -> u64 {
        Self::part(self.high, blocks)
    }

    /// Blocks in use at the hard mark.
    pub fn hard(self, blocks: u64) -> u64 {
        Self::part(self.hard, blocks)
    }
}

/// How full a medium is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediumUse {
    /// What it is made of.
    pub class: Class,
    /// All data should leave it: see [`super::Pool::set_leaving`].
    pub is_leaving: bool,
    /// Its marks.
    pub watermarks: Watermarks,
    /// Blocks behind its superblocks.
    pub blocks: u64,
    /// Blocks that no file and no node has.
    pub free: u64,
    /// Those of them that new data may take, as of the next commit: what is below the hard mark,
    /// and in runs. Where there are none, new data go to another medium.
    pub room: u64,
}

impl MediumUse {
    /// Blocks that are in use.
    pub fn used(&self) -> u64 {
        self.blocks.saturating_sub(self.free)
    }

    /// Whether data should leave it: it is above its high watermark, or so near that what the
    /// mover brings does not fit any more, or what is free is in fragments.
    pub fn is_at_high(&self) -> bool {
        let near = self.used() + self.blocks / NEAR;
        near > self.watermarks.high(self.blocks) || self.is_in_fragments()
    }

    /// Whether new data go elsewhere, or soon will.
    pub fn is_near_hard(&self) -> bool {
        let near = self.used() + self.blocks / NEAR;
        near > self.watermarks.hard(self.blocks) || self.is_in_fragments()
    }

    /// It would stay so: new data that go elsewhere leave it as full as it is. Below the low mark
    /// nothing is taken away.
    fn is_in_fragments(&self) -> bool {
        self.room == 0 && self.above_low() > 0
    }

    /// Blocks that must leave it until it is at its low mark.
    pub fn above_low(&self) -> u64 {
        self.used().saturating_sub(self.watermarks.low(self.blocks))
    }

    /// Blocks that may come back to it.
    pub fn below_low(&self) -> u64 {
        self.watermarks.low(self.blocks).saturating_sub(self.used())
    }

    /// Blocks that the mover may bring.
    pub fn below_high(&self) -> u64 {
        self.watermarks.high(self.blocks).saturating_sub(self.used())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_parts_of_any_size() {
        let marks = Watermarks::default();
        for (blocks, low, high, hard) in [
            (0, 0, 0, 0),
            (10, 7, 8, 9),
            (1000, 700, 850, 950),
            (u64::from(u32::MAX), 3_006_477_106, 3_650_722_200, 4_080_218_930),
        ] {
            assert_eq!((marks.low(blocks), marks.high(blocks), marks.hard(blocks)), (low, high, hard));
        }
    }

    #[test]
    fn marks_that_are_not_in_order_are_refused() {
        for (low, high, hard) in [(2, 1, 3), (1, 1, 2), (1, 3, 3), (1, 2, 1001)] {
            assert_eq!(Watermarks::new(low, high, hard), None);
        }
        assert!(Watermarks::new(0, 1, 1000).is_some());
    }
}
