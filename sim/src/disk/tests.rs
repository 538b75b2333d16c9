//! The disk keeps what it promises, and only that.

use super::*;

fn media(tear: usize) -> Media {
    Media::new(Options { tear, ..Options::new(16 * SECTOR) }, Random::new(1))
}

fn write(disk: &mut SimDisk, token: u64, sector: u64, byte: u8, durable: bool) {
    let mut buffer = Buffer::new(SECTOR);
    buffer[..SECTOR].fill(byte);
    let operation = Operation::Write { offset: sector * SECTOR as u64, length: SECTOR, buffer, durable };
    disk.submit(token, operation).unwrap();
}

/// Waits for everything in flight; returns the tokens in order of completion.
fn settle(disk: &mut SimDisk) -> Vec<u64> {
    let mut all = Vec::new();
    while disk.in_flight() > 0 {
        disk.wait(Duration::ZERO).unwrap();
        disk.complete(&mut all);
    }
    all.into_iter().map(|completion| completion.token).collect()
}

fn sector(media: &Media, sector: usize) -> u8 {
    media.image()[sector * SECTOR]
}

#[test]
fn a_durable_write_survives_and_a_volatile_one_needs_a_flush() {
    let media = media(SECTOR);
    let mut disk = media.open();
    write(&mut disk, 1, 0, 1, true);
    write(&mut disk, 2, 1, 2, false);
    settle(&mut disk);
    write(&mut disk, 3, 2, 3, false);
    disk.submit(4, Operation::Flush).unwrap();
    settle(&mut disk);
    media.crash(Crash::Nothing);
    // The flush was submitted before write 3 had completed, so it promises nothing about it.
    assert_eq!((sector(&media, 0), sector(&media, 1), sector(&media, 2)), (1, 2, 0));
}

#[test]
fn writes_in_flight_at_a_crash_may_survive_or_not() {
    let mut seen = [false; 2];
    for seed in 0..50 {
        let media = media(SECTOR);
        let mut disk = media.open();
        write(&mut disk, 1, 5, 7, true);
        disk.notify().unwrap();
        media.crash(Crash::Random(Random::new(seed)));
        seen[usize::from(sector(&media, 5) == 7)] = true;
    }
    assert_eq!(seen, [true, true]);
}

#[test]
fn a_sector_in_flight_tears_and_a_settled_one_does_not() {
    let media = media(8);
    let mut disk = media.open();
    write(&mut disk, 1, 0, 1, true);
    settle(&mut disk);
    write(&mut disk, 2, 0, 2, true);
    let mut answers = [1, 3].into_iter();
    media.crash_with(|_| answers.next().unwrap_or(0));
    let image = media.image();
    assert!(image[..24].iter().all(|byte| *byte == 2) && image[24..SECTOR].iter().all(|byte| *byte == 1));
}

#[test]
fn power_goes_off_at_the_chosen_boundary_and_silences_the_queue() {
    let media = media(SECTOR);
    let mut disk = media.open();
    media.power_off_at(3);
    write(&mut disk, 1, 0, 1, true);
    let mut out = Vec::new();
    while disk.complete(&mut out) == 0 {
        disk.wait(Duration::ZERO).unwrap();
    }
    write(&mut disk, 2, 1, 2, true);
    assert!(media.is_off());
    assert!(disk.wait(Duration::ZERO).is_err());
    assert_eq!(disk.complete(&mut out), 0);
    media.crash(Crash::Nothing);
    assert_eq!((sector(&media, 0), sector(&media, 1)), (1, 0));
}

#[test]
fn writes_of_a_killed_process_land_or_do_not_before_the_next_opens() {
    let mut seen = [false; 2];
    for seed in 0..40 {
        let media = Media::new(Options::new(16 * SECTOR), Random::new(seed));
        let mut disk = media.open();
        write(&mut disk, 1, 3, 9, true);
        disk.notify().unwrap();
        media.kill();
        assert_eq!(disk.complete(&mut Vec::new()), 0, "a dead process gets no completion");
        let mut next = media.open();
        let read = |disk: &mut SimDisk| {
            disk.submit(
                1,
                Operation::Read { offset: 3 * SECTOR as u64, length: SECTOR, buffer: Buffer::new(SECTOR) },
            )
            .unwrap();
            let mut out = Vec::new();
            while disk.complete(&mut out) == 0 {
                disk.wait(Duration::ZERO).unwrap();
            }
            out[0].buffer.as_ref().unwrap()[0]
        };
        let before = read(&mut next);
        for _ in 0..50 {
            next.complete(&mut Vec::new());
        }
        assert_eq!(read(&mut next), before, "a write landed although another owner has the lock");
        seen[usize::from(before == 9)] = true;
    }
    assert_eq!(seen, [true; 2]);
}

#[test]
fn injected_faults_happen_to_the_chosen_write() {
    let media = media(SECTOR);
    let mut disk = media.open();
    media.inject(1, Fault::Lost);
    media.inject(2, Fault::Misdirected(SECTOR as u64));
    media.inject(3, Fault::Error(5));
    write(&mut disk, 1, 0, 1, true);
    settle(&mut disk);
    write(&mut disk, 2, 1, 2, true);
    settle(&mut disk);
    write(&mut disk, 3, 4, 3, true);
    let mut out = Vec::new();
    while disk.complete(&mut out) == 0 {
        disk.wait(Duration::ZERO).unwrap();
    }
    assert_eq!(out[0].result.as_ref().unwrap_err().raw_os_error(), Some(5));
    assert_eq!([0, 1, 2, 4].map(|at| sector(&media, at)), [0, 0, 2, 0]);
}

#[test]
fn requests_outside_the_area_are_refused() {
    let media = media(SECTOR);
    let mut disk = media.open();
    let beyond = Operation::Read { offset: 16 * SECTOR as u64, length: SECTOR, buffer: Buffer::new(SECTOR) };
    assert!(matches!(disk.submit(1, beyond), Err(SubmitError::OutOfRange(_))));
    let crooked = Operation::Read { offset: 1, length: SECTOR, buffer: Buffer::new(SECTOR) };
    assert!(matches!(disk.submit(1, crooked), Err(SubmitError::OutOfRange(_))));
}
