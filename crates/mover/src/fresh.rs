//! What it costs to get fresh pages from the kernel, as measured by the transfer itself: those of a direct
//! read, or those of the page cache that a file is read into.
//!
//! Mostly that is the time to zero them. In virtual machines whose hypervisor takes free memory back, each
//! fresh page may first have to be fetched from the host, ten times slower. What it takes are large pieces that
//! lie free, which huge pages come from; small pages come from the scraps, which it leaves alone.

use std::sync::{Mutex, PoisonError};

use crowfly_machine::usage;
use crowfly_route::units::BytesPerSecond;

use crate::memory::Target;

/// The costs of both sizes of pages so far.
#[derive(Debug, Default)]
pub(crate) struct FreshMemory {
    huge: Mutex<Spent>,
    small: Mutex<Spent>,
}

/// Where a direct read had best land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Landfall {
    /// In the destination, whose fresh pages are cheap.
    Destination,
    /// In a buffer that is used again and again, out of which a core copies into small pages: the large ones are
    /// slow to get, and small ones, which lie scattered, are slow for a drive to write to.
    Buffer,
    /// In the page cache, whose pages become the destination: all fresh memory is slow.
    PageCache,
}

#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    bytes: u64,
    seconds: f64,
}

impl Spent {
    /// Beyond this much the past counts for half: costs change while memory is taken.
    const REMEMBERED: u64 = 64 << 20;

    fn add(&mut self, bytes: u64, seconds: f64) {
        if self.bytes > Self::REMEMBERED {
            self.bytes /= 2;
            self.seconds /= 2.0;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.seconds += seconds;
    }

    /// The rate, once enough was taken to be sure on which side of the limit it lies: `enough`, or a quarter of it
    /// where the rate is below a quarter of the limit.
    fn against(self, limit: f64, enough: u64) -> Option<f64> {
        let rate = self.bytes as f64 / self.seconds;
        let enough = match rate < limit / 4.0 {
            true => enough / 4,
            false => enough,
        };
        (self.bytes >= enough).then_some(rate)
    }
}

impl FreshMemory {
    /// Huge pages that cost more CPU time than this many bytes per second and core are slow: a
    /// kernel copy out of the page cache runs at 5 to 10 GB/s.
    const SLOW: f64 = 4e9;
    /// How many bytes of huge pages are taken before judging.
    const ENOUGH: u64 = 16 << 20;
    /// The same of small ones, which cost three times as much at best. Down to here two cores that take them and
    /// copy are faster than a drive of 2 GB/s that fills the page cache's pages, fresh ones as well.
    const SLOW_SMALL: f64 = 0.8e9;
    /// How many bytes of small pages are taken before judging: their cost varies more.
    const ENOUGH_SMALL: u64 = 32 << 20;

    pub(crate) fn took(&self, huge: bool, bytes: u64, seconds: f64) {
        let spent = if huge { &self.huge } else { &self.small };
        let mut spent = spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.add(bytes, seconds);
    }

    /// Has the kernel give a part of host memory its pages now, of the size that has proved cheaper.
    pub(crate) fn fill(&self, target: &Target) {
        self.fill_by(target, Target::prefault);
    }

    fn fill_by(&self, target: &Target, prefault: impl FnOnce(&Target)) {
        let huge = self.take_huge();
        let size = target.take_pages(huge);
        let before = usage::this_thread().total();
        prefault(target);
        let seconds = usage::this_thread().total() - before;
        // What another thread changed meanwhile came in pages of both sizes.
        if target.page_changes() == size {
            self.took(huge, target.len() as u64, seconds);
        }
    }

    /// The measured rate of huge pages, when it is slow and enough was measured.
    pub(crate) fn slow(&self) -> Option<BytesPerSecond> {
        self.huge_rate()
            .filter(|rate| *rate < Self::SLOW)
            .map(BytesPerSecond)
    }

    /// Where the next direct read had best land.
    pub(crate) fn landfall(&self) -> Landfall {
        if self.slow().is_none() {
            Landfall::Destination
        } else if self
            .small_rate()
            .is_none_or(|rate| rate >= Self::SLOW_SMALL)
        {
            Landfall::Buffer
        } else {
            Landfall::PageCache
        }
    }

    /// Whether the next memory should come in huge pages: unless they are slow, and small ones are
    /// faster or not tried yet.
    pub(crate) fn take_huge(&self) -> bool {
        self.slow()
            .is_none_or(|huge| self.small_rate().is_some_and(|small| huge.0 > small))
    }

    fn huge_rate(&self) -> Option<f64> {
        Self::spent(&self.huge).against(Self::SLOW, Self::ENOUGH)
    }

    fn small_rate(&self) -> Option<f64> {
        Self::spent(&self.small).against(Self::SLOW_SMALL, Self::ENOUGH_SMALL)
    }

    fn spent(spent: &Mutex<Spent>) -> Spent {
        *spent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{HUGE_PAGE, Memory};

    /// A billion bytes at some rate.
    fn at(gigabytes_per_second: f64) -> (u64, f64) {
        (1_000_000_000, 1.0 / gigabytes_per_second)
    }

    fn after(huge: &[(u64, f64)], small: &[(u64, f64)]) -> FreshMemory {
        let fresh = FreshMemory::default();
        huge.iter()
            .for_each(|(bytes, seconds)| fresh.took(true, *bytes, *seconds));
        small
            .iter()
            .for_each(|(bytes, seconds)| fresh.took(false, *bytes, *seconds));
        fresh
    }

    #[test]
    fn fresh_memory_is_called_slow_only_when_enough_was_measured_and_copying_would_be_faster() {
        assert_eq!(after(&[], &[]).slow(), None);
        let a_little_slow = (8 << 20, (8 << 20) as f64 / 3e9);
        assert_eq!(
            after(&[a_little_slow], &[]).slow(),
            None,
            "too little to judge"
        );
        assert!(after(&[a_little_slow, a_little_slow], &[]).slow().is_some());
        assert_eq!(after(&[at(10.0)], &[]).slow(), None);
        assert_eq!(after(&[at(2.0)], &[]).slow(), Some(BytesPerSecond::gb(2.0)));
    }

    #[test]
    fn two_huge_pages_at_a_tenth_of_the_usual_rate_are_enough() {
        let page = (HUGE_PAGE as u64, 0.005);
        assert_eq!(after(&[page], &[]).slow(), None);
        assert!(after(&[page, page], &[]).slow().is_some());
    }

    #[test]
    fn small_pages_are_tried_when_huge_ones_are_slow_and_kept_when_they_are_faster() {
        assert!(after(&[], &[]).take_huge());
        assert!(!after(&[at(0.5)], &[]).take_huge(), "not tried yet");
        assert!(!after(&[at(0.5)], &[at(1.0)]).take_huge());
        assert!(after(&[at(0.5)], &[at(0.3)]).take_huge());
    }

    #[test]
    fn a_read_lands_where_the_cheapest_memory_is() {
        assert_eq!(after(&[], &[]).landfall(), Landfall::Destination);
        assert_eq!(after(&[at(10.0)], &[]).landfall(), Landfall::Destination);
        assert_eq!(after(&[at(0.5)], &[]).landfall(), Landfall::Buffer);
        assert_eq!(after(&[at(0.5)], &[at(3.0)]).landfall(), Landfall::Buffer);
        assert_eq!(
            after(&[at(0.5)], &[at(0.4)]).landfall(),
            Landfall::PageCache
        );
    }

    #[test]
    fn memory_that_is_filled_part_by_part_stays_one_mapping_whatever_its_pages() {
        const PARTS: usize = 4;
        let memory = Memory::host(PARTS * HUGE_PAGE, None).expect("8 MB");
        let whole = memory.target(0..PARTS * HUGE_PAGE);
        let base = whole.pointer() as usize;
        let span = base..base + whole.len();
        let mappings = || {
            let maps = std::fs::read_to_string("/proc/self/maps").expect("this process's");
            let bounds = maps
                .lines()
                .filter_map(|line| line.split_once(' ')?.0.split_once('-'));
            let address = |hex| usize::from_str_radix(hex, 16).expect("hexadecimal");
            bounds
                .filter(|(start, end)| address(start) < span.end && address(end) > span.start)
                .count()
        };
        assert_eq!(mappings(), 1);
        let huge_is_slow = after(&[at(0.5)], &[at(1.0)]);
        huge_is_slow.fill(&whole.part(HUGE_PAGE, HUGE_PAGE));
        huge_is_slow.fill(&whole.part(3 * HUGE_PAGE, HUGE_PAGE));
        assert_eq!((mappings(), whole.there()), (1, 2 * HUGE_PAGE));
        after(&[], &[]).fill(&whole);
        assert_eq!((mappings(), whole.there()), (1, PARTS * HUGE_PAGE));
    }

    #[test]
    fn what_came_in_pages_of_two_sizes_counts_for_neither() {
        let memory = Memory::host(HUGE_PAGE, None).expect("2 MB");
        let target = memory.target(0..HUGE_PAGE);
        let fresh = FreshMemory::default();
        let booked = || [&fresh.huge, &fresh.small].map(|spent| FreshMemory::spent(spent).bytes);
        fresh.fill_by(&target, |target| {
            target.take_pages(false);
        });
        assert_eq!(booked(), [0, 0]);
        fresh.fill_by(&target, |_| {});
        assert_eq!(
            booked(),
            [HUGE_PAGE as u64, 0],
            "huge again, and nobody changed it"
        );
    }

    #[test]
    fn when_the_scraps_are_used_up_that_shows_before_as_much_again_was_taken() {
        let fresh = after(&[at(0.5)], &[]);
        let chunk = 2u64 << 20;
        for _ in 0..500 {
            fresh.took(false, chunk, chunk as f64 / 3e9);
        }
        let mut dear = 0;
        while fresh.landfall() == Landfall::Buffer {
            fresh.took(false, chunk, chunk as f64 / 0.5e9);
            dear += chunk;
        }
        assert!(dear <= 96 << 20, "{dear}");
    }
}
