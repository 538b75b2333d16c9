//! Random programs from templates.
//!
//! A template is a line of words:
//!
//! | notation | meaning |
//! | --- | --- |
//! | `$x` | a random word of kind `x` ([`Generator::word`] lists the kinds) |
//! | `a\|b` | one of several words |
//! | `[ .. ]` | left out half of the time |
//! | `{ .. }` | one to three repetitions |
//! | `A ; B` | commands in a row, in which `$same` and `$ownset` are one key |
//! | `=mode` first | how replies are compared ([`Comparison`]); equal without it |
//! | `!` before a word | the command is never made invalid on purpose |

use sietch_sim::Random;

use crate::reply::Comparison;

mod templates;

/// Commands of one program.
const LENGTH: usize = 300;

/// One command in so many runs while one of its keys is watched. The EXEC that follows shows
/// whether the command counts as a change.
const WATCHED_SHARE: usize = 10;

/// One command.
#[derive(Clone)]
pub struct Step {
    /// The name and arguments.
    pub words: Vec<Vec<u8>>,
    /// What must be equal in the two replies.
    pub comparison: Comparison,
    /// Whether the data of both servers must be equal before and after it, because no randomly
    /// chosen data is there at this moment.
    pub settled: bool,
    /// Whether it is meaningful without the commands before it.
    pub first: bool,
    /// Whether a server with little room may refuse it.
    pub huge: bool,
}

impl Step {
    fn exact(words: &[&[u8]]) -> Self {
        let words = words.iter().map(|word| word.to_vec()).collect();
        Self { words, comparison: Comparison::Exact, settled: true, first: false, huge: false }
    }
}

/// Whether a word has the form of a key of a template.
#[must_use]
pub fn is_key(word: &[u8]) -> bool {
    word.len() > 3 && word[0].is_ascii_lowercase() && word.last().is_some_and(u8::is_ascii_digit)
}

/// The program of a seed.
#[must_use]
pub fn program(seed: u64) -> Vec<Step> {
    let mut generator = Generator { random: Random::new(seed), shared: 0 };
    let mut steps = Vec::new();
    while steps.len() < LENGTH {
        let family = &templates::FAMILIES[generator.below(templates::FAMILIES.len())];
        let lines = family[generator.below(family.len())];
        // Lines that belong together are separated by semicolons and share their first key.
        let key = generator.below(3);
        for (at, line) in lines.split(';').enumerate() {
            generator.shared = key;
            let mut step = generator.step(line);
            step.first = at == 0;
            step.settled = !lines.contains("=shape");
            // Not among lines that belong together, which a transaction must include as a whole or
            // not at all: a command that blocks for ever outside a transaction does not block
            // inside.
            if !lines.contains(';') && lines != "MULTI" && generator.below(WATCHED_SHARE) == 0 {
                generator.watched(step, &mut steps);
            } else {
                steps.push(step);
            }
        }
    }
    steps
}

struct Generator {
    random: Random,
    /// The key that the lines of one template share.
    shared: usize,
}

impl Generator {
    fn below(&mut self, limit: usize) -> usize {
        self.random.index(limit)
    }

    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }

    fn step(&mut self, line: &str) -> Step {
        let mut tokens: Vec<&str> = line.split_whitespace().collect();
        let comparison = match tokens[0] {
            "=unordered" => Comparison::Unordered,
            "=pairs" => Comparison::Pairs,
            "=scan" => Comparison::Scan,
            "=scanpairs" => Comparison::ScanPairs,
            "=shape" => Comparison::Shape,
            "=sign" => Comparison::Sign,
            "=ignore" => Comparison::Ignore,
            _ => Comparison::Exact,
        };
        if tokens[0].starts_with('=') {
            tokens.remove(0);
        }
        let mut words = Vec::new();
        self.expand(&tokens, &mut words);
        // A loosely compared command stays as it is: invalidated, it could choose at random on both
        // servers.
        if comparison == Comparison::Exact && !line.contains('!') && self.below(25) == 0 {
            self.spoil(&mut words);
        }
        Step { words, comparison, settled: true, first: false, huge: false }
    }

    /// Puts a command between a WATCH of one of its keys (or of any) and a transaction, which runs
    /// only if no command has changed the key.
    fn watched(&mut self, step: Step, steps: &mut Vec<Step>) {
        let keys: Vec<&Vec<u8>> = step.words[1..].iter().filter(|word| is_key(word)).collect();
        let key = if keys.is_empty() { self.word("$any") } else { keys[self.below(keys.len())].clone() };
        steps.push(Step { first: true, ..Step::exact(&[b"WATCH", &key]) });
        steps.push(Step { first: false, ..step });
        steps.push(Step::exact(&[b"MULTI"]));
        steps.push(Step::exact(&[b"TYPE", &key]));
        steps.push(Step::exact(&[b"EXEC"]));
    }

    fn expand(&mut self, tokens: &[&str], words: &mut Vec<Vec<u8>>) {
        let mut at = 0;
        while at < tokens.len() {
            let (open, close) = match tokens[at] {
                "[" => ("[", "]"),
                "{" => ("{", "}"),
                token => {
                    let token = token.trim_start_matches('!');
                    let choices: Vec<&str> = token.split('|').collect();
                    let choice = self.pick(&choices).to_owned();
                    let word = self.word(&choice);
                    words.push(word);
                    at += 1;
                    continue;
                }
            };
            let mut depth = 0;
            let mut end = at;
            loop {
                depth += usize::from(tokens[end] == open);
                depth -= usize::from(tokens[end] == close);
                if depth == 0 {
                    break;
                }
                end += 1;
            }
            let times = if open == "[" { self.below(2) } else { 1 + self.below(3) };
            for _ in 0..times {
                self.expand(&tokens[at + 1..end], words);
            }
            at = end + 1;
        }
    }

    /// Makes a command invalid with some probability.
    fn spoil(&mut self, words: &mut Vec<Vec<u8>>) {
        let at = self.below(words.len());
        match self.below(4) {
            0 if at > 0 => {
                words.remove(at);
            }
            1 => {
                let again = words[at].clone();
                words.insert(at, again);
            }
            2 if at > 0 => words[at] = self.garbage(),
            _ => {
                let more = self.garbage();
                words.push(more);
            }
        }
    }

    fn garbage(&mut self) -> Vec<u8> {
        self.pick(&[
            "",
            "abc",
            "-",
            "1 ",
            " 1",
            "+1",
            "01",
            "1.5",
            "nan",
            "inf",
            "-inf",
            "9223372036854775808",
            "-1",
            "0",
            "1e3",
            "nx",
            "xx",
            "get",
            "count",
            "limit",
            "withscores",
            "(",
            "[",
            "\\",
            "0x10",
            "99999999999999999999",
        ])
        .into()
    }

    /// A key of a family, or occasionally of another one.
    fn key(&mut self, family: &str) -> Vec<u8> {
        let family = if self.below(20) == 0 {
            self.pick(&["str", "list", "set", "hash", "zset", "num"])
        } else {
            family
        };
        format!("{family}{}", self.below(3)).into()
    }

    fn word(&mut self, token: &str) -> Vec<u8> {
        let Some(kind) = token.strip_prefix('$') else {
            return token.into();
        };
        match kind {
            "k" => self.key("str"),
            "n" => self.key("num"),
            "l" => self.key("list"),
            "s" => self.key("set"),
            "h" => self.key("hash"),
            "z" => self.key("zset"),
            // Sorted sets in which all scores are equal, for ranges by name. Never a key of another
            // type.
            "y" => format!("lex{}", self.below(2)).into(),
            "same" => format!("own{}", self.shared).into(),
            "ownset" => format!("set{}", self.shared).into(),
            "any" => {
                let family = self.pick(&["str", "list", "set", "hash", "zset", "num", "none"]);
                self.key(family)
            }
            "v" => self.value(),
            "m" => self.member(),
            "f" => format!("f{}", self.below(8)).into(),
            "i" => self.integer(12),
            "c" => format!("{}", self.below(6)).into(),
            "big" => self.big(),
            "d" => self.decimal(),
            "score" => self.score(),
            "bound" => self.bound(),
            "lexbound" => {
                let name = self.member();
                match self.below(6) {
                    0 => b"-".to_vec(),
                    1 => b"+".to_vec(),
                    2 | 3 => [b"(", name.as_slice()].concat(),
                    _ => [b"[", name.as_slice()].concat(),
                }
            }
            "p" => {
                self.pick(&["*", "a*", "*[0-9]", "?", "l*t?", "[^a]*", "*\\", "str[0-1]", "z*2", ""]).into()
            }
            // Never so short that it expires during the test.
            "ttl" => self.pick(&["1000000", "20000000", "-1", "0", "9223372036854775807", "x"]).into(),
            "bit" => format!("{}", self.below(70)).into(),
            "long" => "x".repeat(60 + self.below(10)).into(),
            "range" => {
                // Many elements at once, past the limits of compact encodings: a number.
                format!("{}", self.below(700)).into()
            }
            "far" => self.pick(&["9999999999", "9999999998", "1", "-5", "0"]).into(),
            "farms" => self.pick(&["9999999999000", "9999999998001", "1", "-5"]).into(),
            other => panic!("no such kind of word: {other}"),
        }
    }

    fn integer(&mut self, limit: usize) -> Vec<u8> {
        let value = self.below(2 * limit) as i64 - limit as i64;
        value.to_string().into()
    }

    fn big(&mut self) -> Vec<u8> {
        match self.below(6) {
            0 => b"9223372036854775807".to_vec(),
            1 => b"-9223372036854775808".to_vec(),
            2 => b"9223372036854775000".to_vec(),
            _ => self.integer(1000),
        }
    }

    fn decimal(&mut self) -> Vec<u8> {
        match self.below(10) {
            0 => b"1e17".to_vec(),
            1 => b"-0".to_vec(),
            2 => b"3.0e3".to_vec(),
            3 => b"1e-9".to_vec(),
            4 => format!("{}.{}", self.random.word() as i32, self.random.word() as u16).into(),
            5 => format!("0.{}", self.random.word()).into(),
            6 => format!("{}e{}", self.random.word() as i16, self.below(40) as i64 - 20).into(),
            _ => format!("{}.{}", self.below(100), self.below(100)).into(),
        }
    }

    fn score(&mut self) -> Vec<u8> {
        match self.below(12) {
            0 => b"inf".to_vec(),
            1 => b"-inf".to_vec(),
            2 => self.decimal(),
            3 => b"0.1".to_vec(),
            _ => self.integer(10),
        }
    }

    fn bound(&mut self) -> Vec<u8> {
        let score = self.score();
        if self.below(3) == 0 { [b"(", score.as_slice()].concat() } else { score }
    }

    fn member(&mut self) -> Vec<u8> {
        match self.below(3) {
            0 => self.integer(8),
            _ => self.pick(&["a", "b", "c", "d", "aa", "ab", "A", "zz", ""]).into(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        match self.below(8) {
            0 => self.integer(1000),
            1 => self.decimal(),
            2 => b"".to_vec(),
            3 => "y".repeat(self.below(80)).into(),
            4 => vec![0xff, self.below(255) as u8 + 1, 0x00, 0x80],
            5 => b"foo\r\nbar".to_vec(),
            _ => self.pick(&["a", "b", "hello", "12", "0012", "ohmytext"]).into(),
        }
    }
}
