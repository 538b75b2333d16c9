//! Words of a private dialect. For each of [`WORDS`] the field, or common English, has a word that
//! a newcomer understands. The rule reads the parts of `snake_case` and `CamelCase` names as words.

use crate::sources::SourceFile;

/// Each refused word, and the words to write instead.
const WORDS: [(&str, &str); 30] = [
    ("nobody", "nothing, no process, no thread"),
    ("somebody", "a process, a thread, a user"),
    ("anybody", "any process, any user"),
    ("whoever", "the process or caller that"),
    ("whomever", "the process or caller that"),
    ("told", "notified, reported, sent"),
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("embryo", "half-open connection"),
    ("embryos", "half-open connections"),
    ("conceive", "create"),
    ("hatch", "promote"),
    ("stranger", "unmatched segment, another user"),
    ("strangers", "unmatched segments, other users"),
    ("visitor", "client"),
    ("rung", "notified"),
    ("ringer", "sender, notifier"),
    ("lent", "passed without a copy"),
    ("renewal", "re-registration"),
    ("door", "transport"),
    ("doors", "transports"),
    ("ledgers", "log writers"),
    ("speaker", "reconnecting client"),
    ("deaf", "shut down for reading"),
    ("plateau", "w_max"),
    ("odometer", "exhaustive chooser"),
    ("referee", "invariant checker"),
    ("violator", "misbehaving peer"),
    ("registrar", "command sender"),
];

/// Texts in which such a word is the name of an account of Linux.
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

/// Generated files repeat other files, and this file contains the words themselves.
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

    fn findings(text: &str) -> String {
        let mut findings = Vec::new();
        check(&[SourceFile { path: "a.rs".into(), text: text.into() }], &mut findings);
        findings.join("\n")
    }

    #[test]
    fn words_in_sentences_and_in_names_are_found() {
        insta::assert_snapshot!(findings("// Nobody waits.\nfn mend_twice() { MendTwice }\n"), @r#"
        a.rs:1: "nobody"; write: nothing, no process, no thread
        a.rs:2: "mend"; write: fix
        "#);
    }

    #[test]
    fn words_that_only_contain_one_and_names_of_users_pass() {
        assert_eq!(findings("// Recommended: a trunk, amended.\nlet user = \"nobody\";\n"), "");
    }
}
