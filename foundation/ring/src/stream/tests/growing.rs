//! When a producer leaves its region for a larger one.

use super::*;

#[test]
#[cfg_attr(miri, ignore = "megabytes take minutes")]
fn a_ring_grows_at_once_while_small_and_later_only_for_a_peer_that_does_not_read() {
    let [producer, consumer] = pair(RegionSizes::default());
    let block = vec![1; 16 << 20];
    // No reader: 16 + 32 + 64 + 128 + 256 KiB at once, one behind the other.
    assert_eq!(write(&producer, &block), 496 << 10);
    assert_eq!(consumer.readable(), 496 << 10);
    // Still no reader: as much as there is, 512 KiB to 4 MiB more.
    assert!(producer.is_writable());
    assert_eq!(write(&producer, &block), (8 << 20) - (512 << 10));
    assert_eq!(write(&producer, &block), 0);
    assert!(!producer.is_writable());
    while !read(&consumer, 1 << 20).is_empty() {}

    // A reader that is a little slower than the writer keeps the ring small.
    for _ in 0..2000 {
        write(&producer, &block[..20 << 10]);
        let _ = read(&consumer, 10 << 10);
    }
    while !read(&consumer, 1 << 20).is_empty() {}
    let mut held = 0;
    for _ in 0..2000 {
        held += write(&producer, &block[..20 << 10]);
        held -= read(&consumer, 10 << 10).len();
    }
    assert!(held <= 512 << 10, "{held}");
}

#[test]
#[cfg_attr(miri, ignore = "megabytes take minutes")]
fn room_that_a_poll_reports_is_there_although_the_peer_reads_on_in_an_older_region() {
    let [producer, consumer] = pair(RegionSizes::default());
    let block = vec![1; 1 << 20];
    assert_eq!(write(&producer, &block), 496 << 10);
    assert!(producer.is_writable());
    // Of the first 16 KiB: the region of 256 KiB stays full.
    assert_eq!(read(&consumer, 1000).len(), 1000);
    assert_ne!(write(&producer, &block), 0);
}
