//! Huge commands: with large arguments, with large effects, or with the removal of many elements at
//! once.
//!
//! Their keys are those of [`crate::generate`], so that ordinary commands also run on what they
//! leave.

use sietch_sim::Random;

use crate::generate::Step;
use crate::reply::Comparison;

/// Bytes of the largest value that is sent.
const VALUE: usize = 40 << 20;

/// The largest offset that a short command writes to.
const REACH: usize = 200 << 20;

/// Elements of the largest command.
const ELEMENTS: usize = 60_000;

/// More elements than fit in a command of a million arguments.
pub const ALL: &str = "2000000";

/// A size up to `limit` with a random order of magnitude.
fn size(random: &mut Random, limit: usize) -> usize {
    let limit = (limit >> random.index(8)).max(2);
    1 + random.index(limit - 1)
}

fn key(random: &mut Random, family: &str) -> Vec<u8> {
    format!("{family}{}", random.index(3)).into_bytes()
}

fn value(random: &mut Random) -> Vec<u8> {
    let length = size(random, VALUE);
    let piece: Vec<u8> = (0..509).map(|_| random.word() as u8).collect();
    piece.into_iter().cycle().take(length).collect()
}

/// A command with many elements of `each` words.
fn many(
    random: &mut Random,
    name: &str,
    family: &str,
    each: fn(&mut Random, usize) -> Vec<String>,
) -> Vec<Vec<u8>> {
    let mut words = vec![name.as_bytes().to_vec(), key(random, family)];
    for number in 0..size(random, ELEMENTS) {
        words.extend(each(random, number).into_iter().map(String::into_bytes));
    }
    words
}

fn line(name: &str, key: Vec<u8>, rest: &[&str]) -> Vec<Vec<u8>> {
    let rest = rest.iter().map(|word| word.as_bytes().to_vec());
    [name.as_bytes().to_vec(), key].into_iter().chain(rest).collect()
}

/// A command on a string: it grows by the bytes sent, or by a write at a large offset.
fn string(random: &mut Random) -> Vec<Vec<u8>> {
    let name = key(random, "str");
    let far = size(random, REACH);
    match random.index(8) {
        0 => vec![b"SET".to_vec(), name, value(random)],
        1 => vec![b"APPEND".to_vec(), name, value(random)],
        2 => line("SETRANGE", name, &[&far.to_string(), "tail"]),
        3 => line("SETBIT", name, &[&(8 * far).to_string(), "1"]),
        4 => line("BITFIELD", name, &["SET", "u8", &format!("#{far}"), "1"]),
        5 => [b"BITOP".to_vec(), b"NOT".to_vec(), name, key(random, "str")].into(),
        6 => [b"COPY".to_vec(), name, key(random, "str"), b"REPLACE".to_vec()].into(),
        _ => line("GETRANGE", name, &["-5", "-1"]),
    }
}

/// A command on a collection: adds many elements, or removes all.
fn collection(random: &mut Random) -> (Comparison, Vec<Vec<u8>>) {
    let words = match random.index(14) {
        0 => many(random, "RPUSH", "list", |random, number| vec![format!("{number}-{}", random.word())]),
        1 => many(random, "SADD", "set", |random, number| vec![format!("{number}-{}", random.word())]),
        2 => many(random, "SADD", "set", |random, _| vec![random.index(100_000).to_string()]),
        3 => {
            many(random, "HSET", "hash", |random, number| vec![number.to_string(), random.word().to_string()])
        }
        4 => many(random, "ZADD", "zset", |random, number| {
            vec![random.index(1000).to_string(), format!("m{number}")]
        }),
        5 => return (Comparison::Unordered, line("SPOP", key(random, "set"), &[ALL])),
        6 => line("ZPOPMIN", key(random, "zset"), &[&size(random, ELEMENTS).to_string()]),
        7 => line("ZPOPMAX", key(random, "zset"), &[ALL]),
        8 => line("LPOP", key(random, "list"), &[&size(random, ELEMENTS).to_string()]),
        9 => line("LTRIM", key(random, "list"), &["5", "-6"]),
        10 => line("SUNIONSTORE", key(random, "set"), &["set0", "set1", "set2"]),
        11 => line("ZUNIONSTORE", key(random, "zset"), &["3", "zset0", "zset1", "zset2"]),
        12 => line("ZREMRANGEBYRANK", key(random, "zset"), &["3", "-4"]),
        _ => line("LMPOP", b"2".to_vec(), &["list0", "list1", "RIGHT", "COUNT", ALL]),
    };
    (Comparison::Exact, words)
}

/// One huge command.
pub fn step(random: &mut Random) -> Step {
    let (comparison, words) =
        if random.index(2) == 0 { (Comparison::Exact, string(random)) } else { collection(random) };
    Step { words, comparison, settled: true, first: true, huge: true }
}
