//! Which pages of the data region are taken.
//!
//! A bit a page. A request takes the first free run, or as much of it as it needs. Pages come back
//! quickly, and a piece that is shorter than it might be is no harm.

/// Pages of a data region.
#[derive(Debug)]
pub(super) struct Pages {
    taken: Vec<u64>,
    count: u32,
    free: u32,
}

impl Pages {
    pub(super) fn new(count: u32) -> Self {
        let mut taken = vec![0; count.div_ceil(64) as usize];
        // What is beyond the end is taken for good.
        if let (Some(last), true) = (taken.last_mut(), !count.is_multiple_of(64)) {
            *last = u64::MAX << (count % 64);
        }
        Self { taken, count, free: count }
    }

    #[cfg(test)]
    fn free(&self) -> u32 {
        self.free
    }

    fn is_taken(&self, page: u32) -> bool {
        self.taken.get((page / 64) as usize).is_none_or(|word| word >> (page % 64) & 1 == 1)
    }

    /// Takes neighbouring pages, `wanted` at most: the first, and how many.
    pub(super) fn take(&mut self, wanted: u32) -> Option<(u32, u32)> {
        let word = self.taken.iter().position(|word| *word != u64::MAX)?;
        let first = word as u32 * 64 + self.taken[word].trailing_ones();
        let mut got = 0;
        while got < wanted && first + got < self.count && !self.is_taken(first + got) {
            let page = first + got;
            self.taken[(page / 64) as usize] |= 1 << (page % 64);
            got += 1;
        }
        self.free -= got;
        (got > 0).then_some((first, got))
    }

    pub(super) fn release(&mut self, first: u32, pages: u32) {
        for page in first..first + pages {
            debug_assert!(self.is_taken(page), "page {page} was not taken");
            if let Some(word) = self.taken.get_mut((page / 64) as usize) {
                *word &= !(1 << (page % 64));
                self.free += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_page_is_given_twice_and_none_is_lost(
            count in 1_u32..300,
            steps in prop::collection::vec((any::<bool>(), 1_u32..80), 0..200),
        ) {
            let mut pages = Pages::new(count);
            let mut held: Vec<(u32, u32)> = Vec::new();
            for (take, number) in steps {
                if take || held.is_empty() {
                    match pages.take(number) {
                        Some((first, got)) => {
                            prop_assert!(got <= number && first + got <= count);
                            let clear = |(other, length): &(u32, u32)| first + got <= *other || other + length <= first;
                            prop_assert!(held.iter().all(clear));
                            held.push((first, got));
                        }
                        None => prop_assert_eq!(pages.free(), 0),
                    }
                } else {
                    let (first, got) = held.remove(number as usize % held.len());
                    pages.release(first, got);
                }
                let taken: u32 = held.iter().map(|(_, length)| length).sum();
                prop_assert_eq!(pages.free(), count - taken);
            }
        }
    }
}
