//! Words that stand for a term of the field, and sentences without a subject that can be named.
//!
//! Each word of [`WORDS`] has a common or technical word that says the same to a reader who has
//! never seen the project. Names in code count as well: `snake_case` and `CamelCase` are read as
//! words.

use crate::sources::SourceFile;

/// A word that is not to be used, and what to write instead.
const WORDS: [(&str, &str); 19] = [
    ("nobody", "nothing, no process, no thread"),
    ("somebody", "a process, a thread, a user"),
    ("whoever", "the process or caller that"),
    ("told", "notified, reported, sent"),
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("embryo", "half-open connection"),
    ("embryos", "half-open connections"),
    ("conceive", "create"),
    ("hatch", "promote"),
    ("stranger", "unmatched segment, another user"),
    ("rung", "notified"),
    ("deaf", "shut down for reading"),
    ("plateau", "w_max"),
    ("odometer", "exhaustive chooser"),
    ("referee", "invariant checker"),
    ("violator", "misbehaving peer"),
    ("registrar", "command sender"),
];

/// Texts that hold such a word with another meaning: the user `nobody` of every Linux.
const QUOTED: [&str; 5] = ["\"nobody\"", "`nobody`", "user nobody", "nobody:x:", "nobody.sock"];

/// Reports each line with such a word, once a word.
pub(super) fn check(sources: &[SourceFile], findings: &mut Vec<String>) {
    for source in sources.iter().filter(|source| is_read(&source.path)) {
        for (index, line) in source.text.lines().enumerate() {
            if QUOTED.iter().any(|text| line.contains(text)) {
                continue;
            }
            let words = words(line);
            for (word, instead) in WORDS.iter().filter(|(word, _)| words.iter().any(|other| other == word)) {
                findings.push(format!("{}:{}: \"{word}\"; write: {instead}", source.path, index + 1));
            }
        }
    }
}

/// Generated files repeat what is read elsewhere; this one and the style guide hold the words
/// themselves.
fn is_read(path: &str) -> bool {
    (path.ends_with(".rs") || path.ends_with(".md"))
        && !path.starts_with("docs/generated/")
        && path != "xtask/src/tidy/words.rs"
}

/// The words of `line` in lower case; parts of names in code are words of their own.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut before = ' ';
    for letter in line.chars() {
        let begins = letter.is_uppercase() && before.is_lowercase();
        if (begins || !letter.is_alphabetic()) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if letter.is_alphabetic() {
            word.extend(letter.to_lowercase());
        }
        before = letter;
    }
    words.push(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        let mut findings = Vec::new();
        check(&[SourceFile { path: path.into(), text: text.into() }], &mut findings);
        findings.len()
    }

    #[test]
    fn a_word_in_a_sentence_and_in_names_is_found() {
        assert_eq!(findings("a.rs", "// Nobody waits.\n"), 1);
        assert_eq!(findings("a.rs", "fn told_twice() { ToldTwice }\n"), 1);
        assert_eq!(findings("a.md", "whoever asks, is told\n"), 2);
    }

    #[test]
    fn words_that_only_contain_one_are_free() {
        assert_eq!(findings("a.rs", "// Recommended: a trunk, amended.\n"), 0);
    }
}
