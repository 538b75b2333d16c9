//! Random commands whose effects and replies depend on the state alone: no random members, no
//! unordered replies.

use sietch_sim::Random;

/// Appends one request (or a transaction of several) to `out`. Values have up to `value` bytes.
/// Commands that block are included only if `may_block`.
pub(crate) fn command(random: &mut Random, value: usize, may_block: bool, out: &mut Vec<u8>) {
    match random.below(100) {
        0 => {
            words(out, &[b"MULTI"]);
            for _ in 0..random.between(1, 4) {
                simple(random, value, out);
            }
            words(out, &[if random.chance(900) { b"EXEC" } else { b"DISCARD" }]);
        }
        1 => {
            let watched = key(random, "s");
            words(out, &[b"WATCH", &watched]);
            words(out, &[b"MULTI"]);
            simple(random, value, out);
            words(out, &[b"EXEC"]);
        }
        2 if random.chance(300) => {
            words(out, &[*random.pick(&[&b"FLUSHALL"[..], b"FLUSHDB", b"FLUSHALL"])]);
        }
        3 => words(out, &[b"SELECT", if random.chance(500) { b"0" } else { b"1" }]),
        4 if random.chance(300) => words(out, &[b"SWAPDB", b"0", b"1"]),
        5 if random.chance(300) => words(out, &[b"BGREWRITEAOF"]),
        6 if may_block => words(out, &[b"BLPOP", &key(random, "l"), b"0.2"]),
        7 => words(out, &[b"NOSUCHCOMMAND", b"x"]),
        _ => simple(random, value, out),
    }
}

fn simple(random: &mut Random, value: usize, out: &mut Vec<u8>) {
    match random.below(6) {
        0 | 1 => string(random, value, out),
        2 => list(random, value, out),
        3 => hash(random, value, out),
        4 => set(random, out),
        _ if random.chance(500) => sorted_set(random, out),
        _ => generic(random, out),
    }
}

fn string(random: &mut Random, value: usize, out: &mut Vec<u8>) {
    let name = key(random, "s");
    let text = bytes(random, value);
    let number = random.below(1000).to_string();
    match random.below(12) {
        0..=2 => words(out, &[b"SET", &name, &text]),
        3 => words(out, &[b"SET", &name, &text, b"PX", number.as_bytes()]),
        4 => words(out, &[b"APPEND", &name, &text[..text.len().min(50)]]),
        5 => words(out, &[b"INCRBY", &key(random, "n"), number.as_bytes()]),
        6 => words(out, &[b"INCRBYFLOAT", &key(random, "n"), b"0.25"]),
        7 => words(out, &[b"SETRANGE", &name, number.as_bytes(), b"spice"]),
        8 => words(out, &[b"GETDEL", &name]),
        9 => words(out, &[b"MSET", &name, b"one", &key(random, "s"), b"two"]),
        10 => words(out, &[b"SETBIT", &name, number.as_bytes(), b"1"]),
        _ => words(out, &[b"GET", &name]),
    }
}

fn list(random: &mut Random, value: usize, out: &mut Vec<u8>) {
    let (name, other) = (key(random, "l"), key(random, "l"));
    let text = bytes(random, value / 4);
    match random.below(9) {
        0 => words(out, &[b"RPUSH", &name, &text, b"b", b"c"]),
        1 => words(out, &[b"LPUSH", &name, &text]),
        2 => words(out, &[b"LPOP", &name]),
        3 => words(out, &[b"RPOP", &name, b"2"]),
        4 => words(out, &[b"LMOVE", &name, &other, b"LEFT", b"RIGHT"]),
        5 => words(out, &[b"LTRIM", &name, b"0", b"20"]),
        6 => words(out, &[b"LREM", &name, b"1", b"b"]),
        7 => words(out, &[b"LINSERT", &name, b"BEFORE", b"c", b"before"]),
        _ => words(out, &[b"LRANGE", &name, b"0", b"-1"]),
    }
}

fn hash(random: &mut Random, value: usize, out: &mut Vec<u8>) {
    let name = key(random, "h");
    let field = member(random);
    match random.below(6) {
        0 | 1 => words(out, &[b"HSET", &name, &field, &bytes(random, value), &member(random), b"x"]),
        2 => words(out, &[b"HINCRBY", &name, b"count", b"3"]),
        3 => words(out, &[b"HDEL", &name, &field]),
        4 => words(out, &[b"HSETNX", &name, &field, b"new"]),
        _ => words(out, &[b"HGET", &name, &field]),
    }
}

fn set(random: &mut Random, out: &mut Vec<u8>) {
    let (name, other) = (key(random, "t"), key(random, "t"));
    let (first, second) = (member(random), member(random));
    match random.below(7) {
        0 | 1 => words(out, &[b"SADD", &name, &first, &second]),
        2 => words(out, &[b"SREM", &name, &first]),
        3 => words(out, &[b"SMOVE", &name, &other, &second]),
        4 => words(out, &[b"SUNIONSTORE", &name, &name, &other]),
        5 => words(out, &[b"SDIFFSTORE", &name, &name, &other]),
        _ => words(out, &[b"SISMEMBER", &name, &first]),
    }
}

fn sorted_set(random: &mut Random, out: &mut Vec<u8>) {
    let (name, other) = (key(random, "z"), key(random, "z"));
    let score = random.below(50).to_string();
    match random.below(7) {
        0 | 1 => words(out, &[b"ZADD", &name, score.as_bytes(), &member(random), b"1.5", &member(random)]),
        2 => words(out, &[b"ZINCRBY", &name, b"0.1", &member(random)]),
        3 => words(out, &[b"ZPOPMIN", &name]),
        4 => words(out, &[b"ZUNIONSTORE", &name, b"2", &name, &other]),
        5 => words(out, &[b"ZREMRANGEBYSCORE", &name, b"20", score.as_bytes()]),
        _ => words(out, &[b"ZRANGE", &name, b"0", b"-1", b"WITHSCORES"]),
    }
}

fn generic(random: &mut Random, out: &mut Vec<u8>) {
    let kind = *random.pick(&["s", "l", "h", "t", "z", "n"]);
    let (name, other) = (key(random, kind), key(random, kind));
    let wait = random.between(1, 500).to_string();
    match random.below(10) {
        0 => words(out, &[b"DEL", &name, &other]),
        1 => words(out, &[b"UNLINK", &name]),
        2 | 3 => words(out, &[b"PEXPIRE", &name, wait.as_bytes()]),
        4 => words(out, &[b"PERSIST", &name]),
        5 => words(out, &[b"RENAME", &name, &other]),
        6 => words(out, &[b"COPY", &name, &other, b"REPLACE"]),
        7 => words(out, &[b"MOVE", &name, b"1"]),
        8 => words(out, &[b"TYPE", &name]),
        _ => words(out, &[b"EXPIRE", &name, b"-1"]),
    }
}

fn key(random: &mut Random, kind: &str) -> Vec<u8> {
    // Occasionally a key of another type: the reply is an error, and nothing changes.
    let kind = if random.chance(30) { *random.pick(&["s", "l", "h", "t", "z"]) } else { kind };
    format!("{kind}{}", random.below(4)).into_bytes()
}

fn member(random: &mut Random) -> Vec<u8> {
    format!("m{}", random.below(12)).into_bytes()
}

fn bytes(random: &mut Random, most: usize) -> Vec<u8> {
    let length = if random.chance(100) { random.index(most * 10 + 1) } else { random.index(most + 1) };
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

/// Appends a request of these words.
pub(crate) fn words(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}
